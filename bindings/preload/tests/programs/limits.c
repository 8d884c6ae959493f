// SPDX-License-Identifier: Apache-2.0 OR MIT
// Limits on address space that a program sets: they hold for its own memory, can be read back, and children and later
// images have them. Arguments: MiB of memory that does not fit (0 for none); with "image LIMIT HARD", what the limits must be.
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define LIMIT 268435457ul  // not a multiple of anything
#define STEP (16 * MIB)
extern char **environ;
static char *self;

static struct rlimit got(int resource) { struct rlimit limit; CHECK(getrlimit(resource, &limit) == 0); return limit; }
static void set(int resource, rlim_t soft, rlim_t hard) { struct rlimit limit = {soft, hard}; CHECK(setrlimit(resource, &limit) == 0); }
static void *nothing(void *given) { return given; }

// How many steps of memory there are until the limit, which are all given back.
static int steps(int flags) {
    static void *all[64];
    int count = 0;
    while (count < 64 && (all[count] = mmap(NULL, STEP, PROT_READ | PROT_WRITE, flags, -1, 0)) != MAP_FAILED) count++;
    if (count < 64) CHECK(errno == ENOMEM);
    for (int i = 0; i < count; i++) CHECK(munmap(all[i], STEP) == 0);
    return count;
}

static int of_heap(void) {
    void *all[64];
    int count = 0;
    while (count < 64 && (all[count] = malloc(STEP - 65536)) != NULL) count++;
    for (int i = 0; i < count; i++) free(all[i]);
    return count;
}

static void holds(void) {
    int own = steps(MAP_PRIVATE | MAP_ANONYMOUS), shared = steps(MAP_SHARED | MAP_ANONYMOUS);
    if (own < 14 || own > 15 || shared < 14 || shared > 15) fprintf(stderr, "%d and %d steps\n", own, shared);
    CHECK(own >= 14 && own <= 15 && shared >= 14 && shared <= 15);
    // Both kinds share the limit, and memory that is given back can be had again.
    void *half = mmap(NULL, 8 * STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(half != MAP_FAILED);
    shared = steps(MAP_SHARED | MAP_ANONYMOUS);
    CHECK(shared >= 6 && shared <= 7);
    CHECK(mremap(half, 8 * STEP, 17 * STEP, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
    CHECK((half = mremap(half, 8 * STEP, 10 * STEP, MREMAP_MAYMOVE)) != MAP_FAILED);
    CHECK(mmap(half, 10 * STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == half);
    CHECK(munmap(half, 10 * STEP) == 0);
    CHECK(steps(MAP_SHARED | MAP_ANONYMOUS) >= 14);
    pthread_t threads[4];
    pthread_attr_t small;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 128 << 10) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], &small, nothing, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void image(pid_t child, const char *how) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (status) fprintf(stderr, "%s: %x\n", how, status);
    CHECK(status == 0);
}

int main(int count, char **arguments) {
    self = arguments[0];
    if (count > 3) {
        rlim_t soft = strtoul(arguments[2], NULL, 10), hard = strtoul(arguments[3], NULL, 10);
        struct rlimit limit = got(RLIMIT_AS);
        // An image that is not the process's first knows limits in KiB.
        if (limit.rlim_cur >> 10 != soft >> 10 || limit.rlim_max != hard) fprintf(stderr, "%lu %lu for %lu %lu\n", limit.rlim_cur, limit.rlim_max, soft, hard);
        CHECK(limit.rlim_cur >> 10 == soft >> 10 && limit.rlim_max == hard);
        if (soft >> 10 == LIMIT >> 10) holds();
        if (count > 4) {
            CHECK(got(RLIMIT_DATA).rlim_cur == 512 * MIB && got(RLIMIT_DATA).rlim_max == RLIM_INFINITY);
            set(RLIMIT_AS, hard, hard);
            int data = steps(MAP_PRIVATE | MAP_ANONYMOUS);
            const char *masked = getenv("MEMLIFT_DISABLE");
            CHECK((data >= 30 && data <= 31) || (masked && strstr(masked, "uffd")));
        }
        return 0;
    }
    size_t more = strtoul(arguments[1], NULL, 10) * MIB;
    struct rlimit stack = got(RLIMIT_STACK), locked = got(RLIMIT_MEMLOCK), old;
    if (more) press(more);
    if (more) munmap(burden, burden_bytes);
    burden_bytes = 0;

    struct rlimit first = got(RLIMIT_AS);
    CHECK(first.rlim_cur == RLIM_INFINITY && first.rlim_max == RLIM_INFINITY);
    set(RLIMIT_AS, LIMIT, RLIM_INFINITY);
    CHECK(got(RLIMIT_AS).rlim_cur == LIMIT && got(RLIMIT_AS).rlim_max == RLIM_INFINITY);
    CHECK(syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, &old) == 0 && old.rlim_cur == LIMIT);
    CHECK(got(RLIMIT_LOCKS).rlim_cur == RLIM_INFINITY);
    CHECK(syscall(SYS_setrlimit, RLIMIT_AS, NULL) == -1 && errno == EFAULT);
    struct rlimit wrong = {2, 1};
    CHECK(setrlimit(RLIMIT_AS, &wrong) == -1 && errno == EINVAL);
    holds();
    // The data limit counts private memory that may be written.
    set(RLIMIT_AS, RLIM_INFINITY, RLIM_INFINITY);
    set(RLIMIT_DATA, LIMIT, RLIM_INFINITY);
    CHECK(got(RLIMIT_DATA).rlim_cur == LIMIT && got(RLIMIT_AS).rlim_cur == RLIM_INFINITY);
    int data = steps(MAP_PRIVATE | MAP_ANONYMOUS);
    // Where absent memory is memory without access, this limit cannot hold for the arena.
    const char *masked = getenv("MEMLIFT_DISABLE");
    CHECK(((data >= 14 && data <= 15) || (masked && strstr(masked, "uffd"))) && steps(MAP_SHARED | MAP_ANONYMOUS) == 64);
    set(RLIMIT_DATA, RLIM_INFINITY, RLIM_INFINITY);
    CHECK(steps(MAP_PRIVATE | MAP_ANONYMOUS) == 64);

    // A limit below what the process has: nothing more, and all that is there stays.
    unsigned char *there = mmap(NULL, 4 * STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(there != MAP_FAILED);
    fill(there, 4 * STEP, 7);
    set(RLIMIT_AS, 4 * STEP, RLIM_INFINITY);
    CHECK(steps(MAP_PRIVATE | MAP_ANONYMOUS) == 0 && steps(MAP_SHARED | MAP_ANONYMOUS) == 0);
    CHECK(same(there, 4 * STEP, 7));
    CHECK(munmap(there, 2 * STEP) == 0);
    CHECK(steps(MAP_PRIVATE | MAP_ANONYMOUS) == 1 && munmap(there + 2 * STEP, 2 * STEP) == 0);

    // A child of fork, of vfork, of posix_spawn, and from the outside.
    set(RLIMIT_AS, LIMIT, RLIM_INFINITY);
    pid_t child = fork();
    if (child == 0) {
        CHECK(got(RLIMIT_AS).rlim_cur == LIMIT);
        holds();
        set(RLIMIT_AS, LIMIT, 1024 * MIB);
        CHECK(got(RLIMIT_AS).rlim_max == 1024 * MIB);
        set(RLIMIT_DATA, 512 * MIB, RLIM_INFINITY);
        execl(self, self, "image", "268435457", "1073741824", "data", NULL);
        _exit(3);
    }
    image(child, "fork");
    CHECK(got(RLIMIT_AS).rlim_max == RLIM_INFINITY);
    child = vfork();
    if (child == 0) {
        struct rlimit limit = {LIMIT + 8192, 3 * LIMIT};
        if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(4);
        execl(self, self, "image", "268443649", "805306371", NULL);
        _exit(3);
    }
    image(child, "vfork");
    CHECK(got(RLIMIT_AS).rlim_cur == LIMIT && got(RLIMIT_AS).rlim_max == RLIM_INFINITY);
    char *line[] = {self, "image", "268435457", "18446744073709551615", NULL};
    CHECK(posix_spawn(&child, self, NULL, NULL, line, environ) == 0);
    image(child, "posix_spawn");
    int gate[2];
    CHECK(pipe(gate) == 0);
    set(RLIMIT_AS, RLIM_INFINITY, RLIM_INFINITY);
    child = fork();
    if (child == 0) {
        char byte;
        CHECK(read(gate[0], &byte, 1) == 1);
        execl(self, self, "image", "268435457", "18446744073709551615", NULL);
        _exit(3);
    }
    struct rlimit limit = {LIMIT, RLIM_INFINITY};
    CHECK(prlimit(child, RLIMIT_AS, &limit, &old) == 0 && old.rlim_cur == RLIM_INFINITY);
    CHECK(prlimit(child, RLIMIT_AS, NULL, &old) == 0 && old.rlim_cur >> 10 == LIMIT >> 10);
    CHECK(write(gate[1], "", 1) == 1);
    image(child, "prlimit");

    // Without the right to do so, nobody raises a hard limit again.
    set(RLIMIT_AS, LIMIT, LIMIT);
    CHECK(got(RLIMIT_AS).rlim_max == LIMIT);
    if (getuid() == 0) CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    struct rlimit higher = {LIMIT, LIMIT + 1};
    CHECK(setrlimit(RLIMIT_AS, &higher) == -1 && errno == EPERM);
    holds();
    CHECK(of_heap() >= 13);
    CHECK(got(RLIMIT_STACK).rlim_cur == stack.rlim_cur && got(RLIMIT_MEMLOCK).rlim_cur == locked.rlim_cur);
    set(RLIMIT_STACK, 4 * MIB, stack.rlim_max);
    CHECK(got(RLIMIT_STACK).rlim_cur == 4 * MIB);
    set(RLIMIT_NOFILE, 40, 64);
    CHECK(got(RLIMIT_NOFILE).rlim_cur == 40 && got(RLIMIT_NOFILE).rlim_max == 64);
    if (more) press(more / 2);
    puts("right");
}
