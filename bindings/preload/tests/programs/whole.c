// SPDX-License-Identifier: Apache-2.0 OR MIT
// mlockall, and what locked memory refuses: `now`, `next`, `advice`, `moved`, `touched`, each in the second argument.
#include "check.h"
#include <sys/wait.h>

static long locked_kib(void) {
    char line[256]; long kib = -1; FILE *file = fopen("/proc/self/status", "r"); CHECK(file);
    while (fgets(line, sizeof line, file)) if (!strncmp(line, "VmLck:", 6)) kib = atol(line + 6);
    fclose(file); return kib;
}
static size_t present(unsigned char *at, size_t bytes) {
    unsigned char pages[4096]; size_t count = 0; CHECK(bytes <= 16 * MIB && mincore(at, bytes, pages) == 0);
    for (size_t i = 0; i < bytes / 4096; i++) count += pages[i] & 1;
    return count;
}
static unsigned char *area(size_t bytes) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(at != MAP_FAILED); return at;
}
#define REFUSED(call, number) CHECK((call) == -1 && errno == (number))
int main(int argc, char **argv) {
    CHECK(argc > 2); size_t pressure = atoi(argv[1]) * MIB; const char *part = argv[2];
    unsigned char *old = area(MIB); fill(old, MIB, 1);
    unsigned char *space = mmap(NULL, 64ul << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); CHECK(space != MAP_FAILED);
    if (!strcmp(part, "now")) {
        CHECK(mlockall(MCL_CURRENT) == 0 && locked_kib() >= 1024); for (int i = 0; i < 2; i++) press(pressure);
        CHECK(present(old, MIB) == 256 && same(old, MIB, 1)); CHECK(munlockall() == 0 && locked_kib() == 0);
        REFUSED(mlockall(0), EINVAL); REFUSED(mlockall(8), EINVAL); REFUSED(mlockall(MCL_ONFAULT), EINVAL);
    } else if (!strcmp(part, "next")) {
        CHECK(mlockall(MCL_FUTURE) == 0); unsigned char *new = area(MIB), *heap = malloc(MIB); CHECK(present(new, MIB) == 256); fill(new, MIB, 2); fill(heap, MIB, 3);
        pid_t child = fork(); CHECK(child >= 0); if (child == 0) { unsigned char *free = area(MIB); _exit(present(free, MIB) != 0); }
        int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(munlockall() == 0); CHECK(mlock(new, MIB) == 0); for (int i = 0; i < 2; i++) press(pressure);
        CHECK(present(new, MIB) == 256 && same(new, MIB, 2) && same(heap, MIB, 3)); unsigned char *later = area(MIB); CHECK(present(later, MIB) == 0);
    } else if (!strcmp(part, "advice")) {
        CHECK(mlock(old + 65536, MIB - 65536) == 0); int refused[] = {MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT};
        for (int round = 0; round < 2; round++) {
            for (size_t i = 0; i < 4; i++) REFUSED(madvise(old + 65536, MIB - 65536, refused[i]), EINVAL);
            CHECK(same(old, MIB, 1)); press(pressure);
        }
        // The part before the locked one is dropped.
        REFUSED(madvise(old, MIB, MADV_DONTNEED), EINVAL); CHECK(old[0] == 0 && old[65535] == 0 && same(old + 65536, MIB - 65536, 1 + 1024));
        REFUSED(mlock(old, 1ul << 50), ENOMEM); REFUSED(madvise(old, 0, 1000), EINVAL);
    } else if (!strcmp(part, "moved")) {
        CHECK(mlock(old, MIB) == 0); press(pressure); unsigned char *new = mremap(old, MIB, 2 * MIB, MREMAP_MAYMOVE); CHECK(new != MAP_FAILED);
        CHECK(locked_kib() == 2048); for (int i = 0; i < 2; i++) press(pressure); CHECK(present(new, MIB) == 256 && same(new, MIB, 1) && new[2 * MIB - 1] == 0);
        CHECK(munmap(new, 2 * MIB) == 0 && locked_kib() == 0);
    } else if (!strcmp(part, "touched")) {
        unsigned char *new = area(MIB); CHECK(mlock2(new, MIB, MLOCK_ONFAULT) == 0 && locked_kib() == 1024); new[8192] = 1; REFUSED(madvise(new, MIB, MADV_DONTNEED), EINVAL);
        for (int i = 0; i < 2; i++) press(pressure);
        CHECK(new[8192] == 1); CHECK(munlock(new, 65536) == 0 && locked_kib() == 1024 - 64); CHECK(munlock(new, MIB) == 0 && locked_kib() == 0);
    } else return 9;
    CHECK(munmap(space, 64ul << 30) == 0);
    puts("right");
    return 0;
}
