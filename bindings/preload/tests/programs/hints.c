// SPDX-License-Identifier: Apache-2.0 OR MIT
// Addresses that a program asks for without insisting, and gets where nothing is there.
#include "check.h"

int main(void) {
    unsigned long wanted[] = { 0x100000000000, 0x040000000000, 0x500000000000, 0x10000000, 0x70000000 };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *at = mmap((void *)wanted[i], 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at != (void *)wanted[i]) fprintf(stderr, "asked for %lx, got %p\n", wanted[i], at);
        CHECK(at == (void *)wanted[i] && mprotect(at, MIB, PROT_READ | PROT_WRITE) == 0);
        memset(at, (int)i, MIB); CHECK(munmap(at, 64 * MIB) == 0);
    }
    // What follows memory that was mapped before is as near as elsewhere.
    char *first = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(first != MAP_FAILED);
    char *far = first + 512 * MIB, *got = mmap(far, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(got == far); char *again = mmap(far, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(again != MAP_FAILED && again != far); memset(again, 3, MIB); for (size_t i = 0; i < MIB; i++) CHECK(got[i] == 0);
    puts("right");
    return 0;
}
