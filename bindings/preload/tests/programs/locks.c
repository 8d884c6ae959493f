// SPDX-License-Identifier: Apache-2.0 OR MIT
// Locked memory beyond the budget: it is there, it counts as locked, and no more of it is in a file than without a lock.
#include "check.h"
#include <fcntl.h>
#include <sys/wait.h>

static long locked_kib(void) {
    char line[256]; long kib = -1; FILE *file = fopen("/proc/self/status", "r"); CHECK(file);
    while (fgets(line, sizeof line, file)) if (!strncmp(line, "VmLck:", 6)) kib = atol(line + 6);
    fclose(file); return kib;
}
// Pages of a range that are in memory, as the kernel has them.
static size_t present(unsigned char *at, size_t bytes) {
    int file = open("/proc/self/pagemap", O_RDONLY); uint64_t word; size_t count = 0; CHECK(file >= 0);
    for (size_t i = 0; i < bytes; i += 4096) { CHECK(pread(file, &word, 8, (long)((uintptr_t)(at + i) / 4096 * 8)) == 8); count += word >> 63; }
    close(file); return count;
}
int main(int argc, char **argv) {
    CHECK(argc > 1); size_t pressure = atoi(argv[1]) * MIB, bytes = MIB / 2;
    unsigned char *early = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *late = malloc(MIB), *plain = malloc(MIB);
    late = (unsigned char *)(((uintptr_t)late + 4095) & ~4095ul); fill(early, bytes, 1); fill(late, bytes, 2); fill(plain, MIB, 3);
    CHECK(mlock(early, bytes) == 0 && locked_kib() == (long)(bytes >> 10)); CHECK(mprotect(early, 8192, PROT_READ) == 0);
    for (int round = 0; round < 2; round++) press(pressure);
    CHECK(present(early, bytes) == bytes / 4096);
    CHECK(mlock(late + 4096, bytes - 4096) == 0 && locked_kib() == (long)((2 * bytes - 4096) >> 10));
    for (int round = 0; round < 2; round++) press(pressure);
    CHECK(present(early, bytes) == bytes / 4096 && present(late + 4096, bytes - 4096) == bytes / 4096 - 1);
    CHECK(same(early, bytes, 1) && same(late, bytes, 2) && same(plain, MIB, 3));
    pid_t child = fork(); CHECK(child >= 0);
    if (child == 0) { CHECK(locked_kib() == 0); press(pressure / 2); CHECK(same(early, bytes, 1) && same(late, bytes, 2)); _exit(0); }
    int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
    // A part is let go, the rest stays.
    CHECK(munlock(early + 65536, 65536) == 0 && locked_kib() == (long)((2 * bytes - 4096 - 65536) >> 10));
    press(pressure); CHECK(present(early, 65536) == 16 && present(early + 131072, bytes - 131072) == (bytes - 131072) / 4096);
    CHECK(munmap(early, MIB) == 0 && locked_kib() == (long)((bytes - 4096) >> 10)); CHECK(munlock(late, bytes) == 0 && locked_kib() == 0);
    CHECK(mlock(early, 4096) != 0 && errno == ENOMEM);
    for (int round = 0; round < 2; round++) press(pressure);
    CHECK(present(late, bytes) < bytes / 4096 && same(late, bytes, 2));
    puts("right");
    return 0;
}
