// SPDX-License-Identifier: Apache-2.0 OR MIT
// Threads and processes that begin or end in unusual ways: `first`, `call`, `raw`, `clone`, `cancel`, `shared`, `files`, each in
// the second argument.
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static size_t pressure;
static void away(void) { press(pressure); press(pressure); }
static unsigned char *own; static int pipes[2];
static void at_exit(void) { CHECK(write(1, "right\n", 6) == 6); }
static void *last(void *nothing) { away(); CHECK(same(own, 4 * MIB, 1)); usleep(50000); return nothing; }
static void *last_by_call(void *nothing) { away(); CHECK(same(own, 4 * MIB, 1)); at_exit(); usleep(50000); return nothing; }
static int in_clone(void *at) { CHECK(same(at, 4 * MIB, 1)); fill(at, MIB, 5); away(); CHECK(same(at, MIB, 5)); return 42; }
static volatile int cleaned;
static void clean(void *at) { CHECK(same(at, 4 * MIB, 1)); cleaned++; }
static void *reads(void *at) { pthread_cleanup_push(clean, at); CHECK(read(pipes[0], at, 100) < 0); pthread_cleanup_pop(0); return NULL; }
static pthread_mutex_t *mutex; static pthread_cond_t *condition;
static void unlock(void *at) { clean(at); CHECK(pthread_mutex_unlock(mutex) == 0); }
static void *waits(void *at) {
    CHECK(pthread_mutex_lock(mutex) == 0); pthread_cleanup_push(unlock, at); while (1) pthread_cond_wait(condition, mutex); pthread_cleanup_pop(0); return NULL;
}
static void is_child(pid_t child, int code) { int status; CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == code); CHECK(same(own, 4 * MIB, 1)); }

int main(int argc, char **argv) {
    CHECK(argc > 2); pressure = atoi(argv[1]) * MIB; const char *part = argv[2]; pthread_t thread;
    own = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); fill(own, 4 * MIB, 1); if (argc > 3) away();
    unsigned char *stack = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(part, "first")) { atexit(at_exit); CHECK(pthread_create(&thread, NULL, last, NULL) == 0); pthread_exit(NULL); }
    if (!strcmp(part, "call")) { CHECK(pthread_create(&thread, NULL, last_by_call, NULL) == 0); syscall(SYS_exit, 0); }
    if (!strcmp(part, "raw")) {
        for (int round = 0; round < 2; round++) {
            pid_t child = round ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : syscall(SYS_fork); CHECK(child >= 0);
            if (child == 0) _exit(in_clone(own));
            is_child(child, 42); away();
        }
        int *parent = (int *)malloc(4096), *mine = (int *)malloc(4096); away();
        pid_t child = syscall(SYS_clone, SIGCHLD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID, 0, parent, mine, 0); if (child == 0) _exit(*mine == getpid() ? 6 : 7);
        is_child(child, 6); CHECK(*parent == child);
    } else if (!strcmp(part, "clone")) {
        for (int round = 0; round < 2; round++) { is_child(clone(in_clone, stack + MIB, SIGCHLD, own), 42); away(); }
    } else if (!strcmp(part, "cancel")) {
        mutex = malloc(65536); condition = malloc(65536); pthread_mutex_init(mutex, NULL); pthread_cond_init(condition, NULL); CHECK(pipe(pipes) == 0);
        for (int round = 0; round < 4; round++) {
            CHECK(pthread_create(&thread, NULL, round % 2 ? waits : reads, own) == 0); usleep(50000); if (round / 2) away(); void *how = NULL;
            CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &how) == 0 && how == PTHREAD_CANCELED && cleaned == round + 1);
        }
        CHECK(pthread_mutex_trylock(mutex) == 0);
    } else if (!strcmp(part, "shared")) {
        int status; pid_t child = clone(in_clone, stack + MIB, CLONE_VM | SIGCHLD, own); CHECK(child > 0); if (argc <= 3) usleep(100000); CHECK(waitpid(child, &status, 0) == child);
    } else if (!strcmp(part, "files")) {
        CHECK(clone(in_clone, stack + MIB, CLONE_FILES | SIGCHLD, own) > 0);
    } else return 9;
    puts("right");
    return 0;
}
