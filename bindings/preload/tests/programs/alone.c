// SPDX-License-Identifier: Apache-2.0 OR MIT
// A small program is its process's only thread: it may drop rights one thread at a time, and enter a user namespace.
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

// Without a byte from the heap.
static int threads(void) {
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY); CHECK(fd >= 0);
    ssize_t bytes = read(fd, text, sizeof text - 1); CHECK(bytes > 0);
    close(fd);
    text[bytes] = 0;
    char *line = strstr(text, "\nThreads:"); CHECK(line);
    return atoi(line + 9);
}

// A process that starts when the job's memory is short: what it maps is absent at first, and costs nothing.
static int late(void) {
    CHECK(threads() == 1);
    char *area = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(area != MAP_FAILED);
    CHECK(threads() == 2);
    return 0;
}

int main(int count, char **words) {
    if (count > 1) return late();
    CHECK(threads() == 1);
    pid_t child = fork(); CHECK(child >= 0);
    if (child == 0) {
        CHECK(threads() == 1);
        // A container may forbid it; several threads, or memory in common, are EINVAL.
        CHECK(unshare(CLONE_NEWUSER) == 0 || errno != EINVAL);
        _exit(0);
    }
    int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
    // What is only reserved costs nothing.
    void *reserved = mmap(NULL, 512 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(reserved != MAP_FAILED);
    CHECK(threads() == 1);
    // One that has more may be asked to make room: also if it never asks for memory again.
    char *area = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(area != MAP_FAILED);
    CHECK(threads() == 2);
    memset(area, 1, 64 * MIB);
    char *more = mmap(NULL, 384 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(more != MAP_FAILED);
    child = fork(); CHECK(child >= 0);
    if (child == 0) { execl(words[0], words[0], "late", NULL); _exit(9); }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("right");
    return 0;
}
