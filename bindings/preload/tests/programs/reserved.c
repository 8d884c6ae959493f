// SPDX-License-Identifier: Apache-2.0 OR MIT
// Reserves 1 TiB, as memory-mapped stores, garbage collectors and `rsv 1024` of GAP do, and uses MEBIBYTES of it, in two ways.
#include "check.h"

enum { PROT = PROT_READ | PROT_WRITE, FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };
static const size_t WHOLE = (size_t)1 << 40;

static unsigned char value(size_t page) { return (unsigned char)(page * 7 + 1); }

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) * MIB, pages = bytes / 4096;
    for (int fixed = 0; fixed < 2; fixed++) {
        char *whole = mmap(NULL, WHOLE, PROT_NONE, FLAGS, -1, 0); CHECK(whole != MAP_FAILED);
        // What is used lies in the middle, and not at a multiple of 2 MiB.
        char *part = whole + WHOLE / 2 + 5 * 4096;
        if (fixed) CHECK(mmap(part, bytes, PROT, FLAGS | MAP_FIXED, -1, 0) == part);
        else CHECK(mprotect(part, bytes, PROT) == 0);
        for (size_t page = 0; page < pages; page++) memset(part + page * 4096, value(page), 4096);
        for (size_t page = 0; page < pages; page++) CHECK(part[page * 4096 + 17] == (char)value(page));
        CHECK(mprotect(part, bytes, PROT_NONE) == 0 && mprotect(part, bytes, PROT_READ) == 0);
        CHECK((unsigned char)part[bytes - 1] == value(pages - 1));
        CHECK(munmap(whole, WHOLE) == 0);
    }
    puts("right");
    return 0;
}
