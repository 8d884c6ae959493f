// SPDX-License-Identifier: Apache-2.0 OR MIT
// Coroutines whose stacks lie in memory that goes away, threads with such stacks, and small alternate stacks.
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

enum { COUNT = 64, STACK = 256 << 10, ROUNDS = 12 };
static ucontext_t home, there[COUNT];
static unsigned done;
static int fd;
static void deep(unsigned index, unsigned depth) {
    unsigned char frame[6000]; fill(frame, sizeof frame, index * 100 + depth);
    if (depth > 0) deep(index, depth - 1);
    else for (unsigned round = 0; round < ROUNDS; round++) {
        CHECK(swapcontext(&there[index], &home) == 0);
        // A call on a buffer of this stack, and one inside of libc.
        CHECK(pwrite(fd, frame, sizeof frame, 0) == sizeof frame); memset(frame, 0, sizeof frame); CHECK(pread(fd, frame, sizeof frame, 0) == sizeof frame);
        FILE *null = fopen("/dev/null", "w"); CHECK(null); fprintf(null, "%s %u\n", __func__, round); fclose(null);
    }
    CHECK(same(frame, sizeof frame, index * 100 + depth));
}
static void routine(int index) { deep(index, 20); done++; }
static void *on_own_stack(void *at) {
    unsigned char frame[100000]; fill(frame, sizeof frame, (size_t)at);
    for (int round = 0; round < 3; round++) { usleep(2000); CHECK(same(frame, sizeof frame, (size_t)at)); press(8 * MIB); }
    return at;
}
static _Atomic int inside;
static stack_t small;
static void on_small(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)info; (void)context; stack_t now; inside++;
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == small.ss_sp && now.ss_flags == SS_ONSTACK && now.ss_size == small.ss_size);
    CHECK(sigaltstack(&small, NULL) == -1 && errno == EPERM);
    press(8 * MIB);
}
int main(int argc, char **argv) {
    size_t pressure = (argc > 1 ? atoi(argv[1]) : 24) * MIB;
    char name[] = "/tmp/memlift-coroutines-XXXXXX"; fd = mkstemp(name); CHECK(fd >= 0); unlink(name);
    for (int i = 0; i < COUNT; i++) {
        CHECK(getcontext(&there[i]) == 0); there[i].uc_stack.ss_sp = malloc(STACK); there[i].uc_stack.ss_size = STACK; there[i].uc_link = &home;
        makecontext(&there[i], (void (*)(void))routine, 1, i);
    }
    while (done < COUNT) { for (int i = 0; i < COUNT; i++) if (done < COUNT) CHECK(swapcontext(&home, &there[i]) == 0); press(pressure); }
    // Threads on memory of the heap.
    pthread_t threads[4]; pthread_attr_t attributes; pthread_attr_init(&attributes);
    for (size_t i = 0; i < 4; i++) { void *stack; CHECK(posix_memalign(&stack, 4096, MIB) == 0); CHECK(pthread_attr_setstack(&attributes, stack, MIB) == 0); CHECK(pthread_create(&threads[i], &attributes, on_own_stack, (void *)i) == 0); }
    for (size_t i = 0; i < 4; i++) { void *got; CHECK(pthread_join(threads[i], &got) == 0 && got == (void *)i); }
    for (int i = 0; i < 300; i++) { pthread_t thread; CHECK(pthread_create(&thread, NULL, (void *(*)(void *))mixed, (void *)1) == 0); CHECK(pthread_join(thread, NULL) == 0); }
    // The smallest alternate stack that the kernel takes, in memory that goes away.
    stack_t old; CHECK(sigaltstack(NULL, &old) == 0 && old.ss_flags == SS_DISABLE);
    small = (stack_t){ .ss_sp = malloc(8192), .ss_size = 8192 }; CHECK(sigaltstack(&small, &old) == 0); press(pressure);
    CHECK(sigaltstack(NULL, &old) == 0 && old.ss_sp == small.ss_sp && old.ss_size == 8192 && old.ss_flags == 0);
    struct sigaction action = { .sa_sigaction = on_small, .sa_flags = SA_SIGINFO | SA_ONSTACK }; CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int round = 0; round < 3; round++) { raise(SIGUSR1); press(pressure); } CHECK(inside == 3);
    CHECK(sigaltstack(&(stack_t){ .ss_sp = small.ss_sp, .ss_size = 100 }, NULL) == -1 && errno == ENOMEM);
    CHECK(sigaltstack(&(stack_t){ .ss_sp = small.ss_sp, .ss_size = 8192, .ss_flags = 77 }, NULL) == -1 && errno == EINVAL);
    CHECK(sigaltstack(&(stack_t){ .ss_flags = SS_DISABLE }, NULL) == 0 && sigaltstack(NULL, &old) == 0 && old.ss_flags == SS_DISABLE);
    puts("right");
    return 0;
}
