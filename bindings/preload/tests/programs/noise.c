// SPDX-License-Identifier: Apache-2.0 OR MIT
// Memory that does not pack, beyond the budget: calls, a child and moves on what lies in the spill file.
#include "check.h"
#include <fcntl.h>
#include <sys/wait.h>

static void noise(uint64_t *at, size_t words, uint64_t seed) { for (size_t i = 0; i < words; i++) at[i] = mixed(mixed(seed * 1000003 + i) + i); }
static int is_noise(const uint64_t *at, size_t words, uint64_t seed) { for (size_t i = 0; i < words; i++) if (at[i] != mixed(mixed(seed * 1000003 + i) + i)) { fprintf(stderr, "word %zu of seed %lu\n", i, (unsigned long)seed); return 0; } return 1; }
int main(int argc, char **argv) {
    size_t count = argc > 1 ? atoi(argv[1]) : 48, words = MIB / 8; uint64_t *at[256];
    for (size_t i = 0; i < count; i++) { at[i] = malloc(MIB); noise(at[i], words, i); }
    for (size_t i = 0; i < count; i++) CHECK(is_noise(at[i], words, i));
    char name[] = "/tmp/memlift-noise-XXXXXX"; int fd = mkstemp(name); CHECK(fd >= 0); unlink(name);
    for (size_t i = 0; i < count; i += 3) { CHECK(pwrite(fd, at[i], MIB, 0) == (ssize_t)MIB); memset(at[i], 0, MIB); CHECK(pread(fd, at[i], MIB, 0) == (ssize_t)MIB); CHECK(is_noise(at[i], words, i)); }
    pid_t child = fork(); CHECK(child >= 0);
    if (child == 0) { for (size_t i = 0; i < count; i++) { CHECK(is_noise(at[i], words, i)); if (i % 5 == 0) { noise(at[i], words, 500 + i); CHECK(is_noise(at[i], words, 500 + i)); } } _exit(0); }
    int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (size_t i = 0; i < count; i += 4) { at[i] = realloc(at[i], 2 * MIB); CHECK(is_noise(at[i], words, i)); }
    for (size_t i = 0; i < count; i++) { CHECK(is_noise(at[i], words, i)); free(at[i]); }
    puts("right");
    return 0;
}
