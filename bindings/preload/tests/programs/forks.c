// SPDX-License-Identifier: Apache-2.0 OR MIT
// fork while pages are away and while other threads fault: child and parent keep their own contents.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define AREAS 4
static unsigned char *areas[AREAS];
static size_t area_bytes;
static volatile int stop;
static void *reader(void *at) {
    size_t which = (size_t)at; uint64_t state = which + 1;
    while (!stop) {
        state = mixed(state + 1); size_t page = state % (area_bytes / 4096);
        for (size_t i = page * 4096; i < page * 4096 + 64; i++) CHECK(areas[which][i] == byte_of(which, i));
        // It faults often, and leaves the cores to the processes that are tested.
        if (state % 8 == 0) usleep(200);
    }
    return NULL;
}
static int in_clone(void *at) { (void)at; for (int a = 0; a < AREAS; a++) CHECK(same(areas[a], area_bytes, a)); _exit(0); }

int main(int argc, char **argv) {
    area_bytes = (argc > 1 ? atoi(argv[1]) : 16) * MIB;
    for (int a = 0; a < AREAS; a++) { areas[a] = malloc(area_bytes); fill(areas[a], area_bytes, a); }
    pthread_t threads[2];
    int threaded = argc > 2 && atoi(argv[2]);
    if (threaded) for (size_t t = 0; t < 2; t++) pthread_create(&threads[t], NULL, reader, (void *)t);
    for (int round = 0; round < 6; round++) {
        fflush(stdout);
        pid_t child = round == 3 ? _Fork() : round == 4 ? (pid_t)syscall(SYS_fork) : fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int a = 0; a < AREAS; a++) CHECK(same(areas[a], area_bytes / 2, a));
            // The child's writes are the child's.
            fill(areas[2], area_bytes, 100 + round); fill(areas[3] + 4096, 4096, 7);
            pid_t grandchild = fork(); CHECK(grandchild >= 0);
            if (grandchild == 0) { CHECK(same(areas[2], area_bytes, 100 + round)); CHECK(same(areas[0], area_bytes, 0)); _exit(0); }
            int status; CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
            CHECK(same(areas[2], area_bytes, 100 + round)); CHECK(same(areas[1], area_bytes, 1));
            _exit(0);
        }
        if (round % 2) fill(areas[3], area_bytes, 3);
        int status; CHECK(waitpid(child, &status, 0) == child); if (status) { fprintf(stderr, "round %d: status %x\n", round, status); return 1; }
        for (int a = 0; a < AREAS; a++) CHECK(same(areas[a], area_bytes, a));
    }
    char *stack = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    pid_t child = clone(in_clone, stack + (1 << 20), SIGCHLD, NULL); CHECK(child > 0);
    int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
    stop = 1;
    if (threaded) for (int t = 0; t < 2; t++) pthread_join(threads[t], NULL);
    for (int a = 0; a < AREAS; a++) CHECK(same(areas[a], area_bytes, a));
    puts("right");
    return 0;
}
