// SPDX-License-Identifier: Apache-2.0 OR MIT
// A program with handlers of its own for SIGSEGV and SIGBUS, masks, alternate stacks, and timers while pages are away.
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

static size_t pressure;
static unsigned char *area;
static size_t area_bytes = 24 * MIB;
static sigjmp_buf back;
static volatile sig_atomic_t faults, ticks, wrong;
static unsigned char *guarded = (void *)-1;
static int *volatile nowhere = (int *)8;
static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)context; faults++;
    if ((unsigned char *)info->si_addr >= guarded && (unsigned char *)info->si_addr < guarded + 4096) { if (mprotect(guarded, 4096, PROT_READ | PROT_WRITE)) _exit(3); return; }
    // The handler itself touches memory that is away.
    for (size_t i = 0; i < area_bytes; i += MIB) if (area[i] != byte_of(1, i)) wrong++;
    siglongjmp(back, signal);
}
static void on_tick(int signal) {
    (void)signal; ticks++;
    size_t i = mixed(ticks) % area_bytes; if (area[i] != byte_of(1, i)) wrong++;
}
static void *masked(void *at) {
    (void)at; sigset_t all; sigfillset(&all); CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
    sigset_t now; CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0); CHECK(sigismember(&now, SIGSEGV) && sigismember(&now, SIGTERM));
    CHECK(same(area, area_bytes, 1));
    return NULL;
}

int main(int argc, char **argv) {
    pressure = (argc > 1 ? atoi(argv[1]) : 64) * MIB;
    area = malloc(area_bytes); fill(area, area_bytes, 1); press(pressure);
    // A stack for signals in memory that goes away.
    stack_t stack = { .ss_sp = malloc(64 << 10), .ss_size = 64 << 10 }; CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK }, before;
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGSEGV, &action, &before) == 0 && before.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    CHECK(sigaction(SIGSEGV, NULL, &before) == 0 && before.sa_sigaction == on_fault);
    press(pressure);
    for (int round = 0; round < 20; round++) {
        int caught = sigsetjmp(back, 1);
        if (caught == 0) { *nowhere = 1; CHECK(!"a fault"); }
        CHECK(caught == SIGSEGV);
        press(pressure / 4);
    }
    CHECK(faults == 20 && wrong == 0);
    guarded = mmap(NULL, 128 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(guarded, 128 << 10, 4);
    for (int round = 0; round < 10; round++) {
        press(pressure); CHECK(mprotect(guarded, 4096, round % 2 ? PROT_READ : PROT_NONE) == 0);
        int expected = faults + 1; ((volatile unsigned char *)guarded)[5] = byte_of(4, 5); CHECK(faults == expected); CHECK(same(guarded, 128 << 10, 4));
    }
    // Past the end of a file: SIGBUS that is the program's.
    char name[] = "/tmp/memlift-signals-XXXXXX"; int fd = mkstemp(name); unlink(name);
    unsigned char *file = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    int caught = sigsetjmp(back, 1); if (caught == 0) { *(volatile unsigned char *)file; CHECK(!"a fault"); } CHECK(caught == SIGBUS);
    // Timers while faults are answered.
    struct sigaction tick = { .sa_handler = on_tick, .sa_flags = SA_RESTART | SA_ONSTACK }; sigfillset(&tick.sa_mask);
    CHECK(sigaction(SIGALRM, &tick, NULL) == 0);
    struct itimerval often = { { 0, 500 }, { 0, 500 } }; setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < 3; round++) { CHECK(same(area, area_bytes, 1)); press(pressure); free(malloc(300000)); }
    setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
    CHECK(ticks > 0 && wrong == 0);
    // Masks: the three seem blocked and are not.
    sigset_t all, old; sigfillset(&all); press(pressure);
    CHECK(sigprocmask(SIG_SETMASK, &all, &old) == 0); CHECK(same(area, area_bytes, 1));
    CHECK(sigprocmask(SIG_SETMASK, NULL, &all) == 0 && sigismember(&all, SIGBUS));
    // A signal that is sent waits for the mask.
    int sent = faults; guarded = (void *)-1; kill(getpid(), SIGSEGV); CHECK(faults == sent);
    caught = sigsetjmp(back, 0); if (caught == 0) { sigprocmask(SIG_SETMASK, &old, NULL); } CHECK(caught == SIGSEGV && faults == sent + 1);
    sigprocmask(SIG_SETMASK, &old, NULL);
    pthread_t thread; press(pressure); pthread_create(&thread, NULL, masked, NULL); pthread_join(thread, NULL);
    // Other stacks.
    static ucontext_t here, there; CHECK(getcontext(&there) == 0); CHECK(getcontext(&here) == 0);
    // The default again: a fault ends the process, as it would.
    signal(SIGSEGV, SIG_DFL);
    puts("right"); fflush(stdout);
    *nowhere = 1;
    return 0;
}
