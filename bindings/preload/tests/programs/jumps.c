// SPDX-License-Identifier: Apache-2.0 OR MIT
// Handlers that jump out of calls whose buffers are pinned: more of them than the budget could keep.
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/uio.h>

enum { PIECE = 192 << 10, ROUNDS = 256 };
static sigjmp_buf back;
static volatile sig_atomic_t jumps;
static void on_tick(int signal) { jumps++; siglongjmp(back, signal); }
static void deeper(int fd, unsigned char *at, int kind) {
    volatile unsigned char frame[512]; frame[kind % 512] = 1; CHECK(frame[kind % 512]);
    struct iovec parts[2] = { { at, PIECE / 2 }, { at + PIECE / 2, PIECE / 2 } };
    if (kind % 3 == 0) { ssize_t got = read(fd, at, PIECE); CHECK(got == -1 && errno == EINTR); }
    else if (kind % 3 == 1) { ssize_t got = readv(fd, parts, 2); CHECK(got == -1 && errno == EINTR); }
    else deeper(fd, at, kind / 3);
}
static void *work(void *unused) {
    (void)unused; size_t bytes = (size_t)PIECE * ROUNDS; int p[2]; CHECK(pipe(p) == 0);
    unsigned char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); fill(area, bytes, 1);
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGALRM); CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
    for (volatile int round = 0; round < ROUNDS; round++) {
        if (sigsetjmp(back, 1) == 0) {
            struct itimerval soon = { { 0, 0 }, { 0, 1500 } }; setitimer(ITIMER_REAL, &soon, NULL);
            deeper(p[0], area + (size_t)round * PIECE, round % 27); CHECK(!"it blocks");
        }
    }
    CHECK(jumps == ROUNDS); press(8 * MIB); CHECK(same(area, bytes, 1));
    // The calls work as before.
    CHECK(write(p[1], area, 4096) == 4096); memset(area, 0, 4096); CHECK(read(p[0], area, PIECE) == 4096); CHECK(same(area, bytes, 1));
    CHECK(munmap(area, bytes) == 0);
    return NULL;
}
int main(void) {
    struct sigaction action = { .sa_handler = on_tick }; CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    press(40 * MIB); work(NULL);
    jumps = 0; sigset_t set; sigemptyset(&set); sigaddset(&set, SIGALRM); CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    pthread_t thread; CHECK(pthread_create(&thread, NULL, work, NULL) == 0); pthread_join(thread, NULL);
    puts("right");
    return 0;
}
