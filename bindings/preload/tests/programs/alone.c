// SPDX-License-Identifier: Apache-2.0 OR MIT
// A small program is its process's only thread: it may drop rights one thread at a time, and enter a user namespace.
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>

static int threads(void) {
    DIR *folder = opendir("/proc/self/task"); CHECK(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

int main(void) {
    CHECK(threads() == 1);
    pid_t child = fork(); CHECK(child >= 0);
    if (child == 0) {
        CHECK(threads() == 1);
        // A container may forbid it; several threads, or a heap in common, are EINVAL.
        CHECK(unshare(CLONE_NEWUSER) == 0 || errno != EINVAL);
        _exit(0);
    }
    int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
    // One that has more is asked to make room when its job needs some.
    char *area = malloc(64 * MIB); CHECK(area);
    memset(area, 1, 64 * MIB);
    char *volatile more = malloc(64 * MIB); CHECK(more);
    free(more);
    CHECK(threads() == 2);
    puts("right");
    return 0;
}
