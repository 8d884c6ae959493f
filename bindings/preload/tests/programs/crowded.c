// SPDX-License-Identifier: Apache-2.0 OR MIT
// As many mappings as the kernel lets a process have (vm.max_map_count): the call that would make one more fails or is put off, and
// memory comes and goes as before.
#include "check.h"

enum { PAGE = 4096, MOST = 70000 };
int main(int argc, char **argv) {
    size_t pressure = (argc > 1 ? atoi(argv[1]) : 24) * MIB, kept = 8 * MIB;
    unsigned char *buffer = mmap(NULL, kept, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(buffer != MAP_FAILED); fill(buffer, kept, 1);
    // Every second page of an area gets other rights: a mapping each.
    unsigned char *area = mmap(NULL, 2ul * MOST * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); CHECK(area != MAP_FAILED);
    size_t made = 0; while (made < MOST && mprotect(area + 2 * made * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0) made++;
    CHECK(made == MOST || errno == ENOMEM); CHECK(made > 1000);
    // The program gives some back, as one does that was told so, and goes on.
    size_t left = made - made / 4; for (size_t i = left; i < made; i++) CHECK(mprotect(area + 2 * i * PAGE, PAGE, PROT_NONE) == 0);
    for (size_t i = 0; i < left; i += 10) fill(area + 2 * i * PAGE, PAGE, 10 + i);
    for (int round = 0; round < 3; round++) {
        press(pressure); CHECK(same(buffer, kept, 1));
        for (size_t i = 0; i < left; i += 10) CHECK(same(area + 2 * i * PAGE, PAGE, 10 + i));
    }
    puts("right");
    return 0;
}
