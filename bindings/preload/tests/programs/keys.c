// SPDX-License-Identifier: Apache-2.0 OR MIT
// Protection keys: either there are none, or they work on all memory. V8 ends the process where it got a key that a page refuses.
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static void use(int key) {
    if (key < 0) {
        CHECK(errno == ENOSYS || errno == ENOSPC || errno == EINVAL);
        return;
    }
    char *area = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(area != MAP_FAILED);
    CHECK(pkey_mprotect(area, 8 * MIB, PROT_READ | PROT_WRITE, key) == 0);
    area[5 * MIB] = 1;
}

int main(void) {
    for (int again = 0; again < 3; again++) {
        use(pkey_alloc(0, 0));
        use((int)syscall(SYS_pkey_alloc, 0L, 0L));
        // More than the budget, the second time: from then on memory is away, and system calls are filtered.
        char *area = mmap(NULL, 96 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(area != MAP_FAILED);
        for (size_t at = 0; at < 96 * MIB; at += 4096) area[at] = (char)(at >> 12);
    }
    puts("right");
    return 0;
}
