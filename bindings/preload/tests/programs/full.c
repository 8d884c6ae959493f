// SPDX-License-Identifier: Apache-2.0 OR MIT
// A process without a free descriptor: its memory and that of its child are whole. Arguments: MiB of memory, the hard limit of
// descriptors, and 1 if memory is short before the descriptors are.
#include "check.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

int main(int count, char **arguments) {
    CHECK(count > 3);
    size_t bytes = strtoul(arguments[1], NULL, 10) * MIB;
    struct rlimit limit = { 20, strtoul(arguments[2], NULL, 10) }, now;
    if (atoi(arguments[3])) press(bytes);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (open("/dev/null", O_RDONLY) >= 0) {}
    CHECK(errno == EMFILE);
    unsigned char *memory = malloc(bytes);
    fill(memory, bytes, 3);
    CHECK(same(memory, bytes, 3));
    pid_t child = fork();
    if (child == 0) {
        CHECK(same(memory, bytes, 3));
        fill(memory, bytes / 2, 9);
        CHECK(same(memory, bytes / 2, 9) && open("/dev/null", O_RDONLY) == -1 && errno == EMFILE);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(same(memory, bytes, 3) && open("/dev/null", O_RDONLY) == -1 && errno == EMFILE);
    // Another thread of the library may be raising it for a moment.
    for (int turn = 0; turn < 1000; turn++) {
        CHECK(getrlimit(RLIMIT_NOFILE, &now) == 0);
        if (now.rlim_cur == 20) break;
        usleep(1000);
    }
    CHECK(now.rlim_cur == 20);
    puts("right");
}
