// SPDX-License-Identifier: Apache-2.0 OR MIT
// Robust mutexes whose pages are away when their owner ends: the next thread that locks one is told, and so is one that waits.
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define MUTEXES 24
#define APART (3 * 4096 + 40)

static size_t pressure;
// Not on the heap, so that nobody touches the pages of the mutexes.
static pthread_mutex_t *mutex[MUTEXES];
static atomic_int locked, go;
static unsigned char *room;

static int is_present(void *at) {
    int file = open("/proc/self/pagemap", O_RDONLY); uint64_t word; CHECK(file >= 0);
    CHECK(pread(file, &word, 8, (long)((uintptr_t)at / 4096 * 8)) == 8); close(file); return word >> 63;
}
static int are_away(void) { int away = 0; for (int i = 1; i < MUTEXES; i++) away += !is_present(mutex[i]); return away; }
// Other memory is used in no order, so that pages leave which nobody uses.
static void stir(void) {
    press(pressure); size_t pages = pressure / 4096;
    for (size_t i = 0; i < pages; i++) { size_t page = i * 1031 % pages; CHECK(burden[page * 4096] == (unsigned char)page); }
}
static void push_out(void) {
    for (int round = 0; pressure && are_away() <= MUTEXES / 2; round++) { CHECK(round < 40); stir(); }
}
static void prepare(pthread_mutex_t *at, int protocol, int shared) {
    pthread_mutexattr_t kind; CHECK(pthread_mutexattr_init(&kind) == 0);
    CHECK(pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0 && pthread_mutexattr_setprotocol(&kind, protocol) == 0);
    CHECK(pthread_mutexattr_setpshared(&kind, shared ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE) == 0);
    CHECK(pthread_mutex_init(at, &kind) == 0); pthread_mutexattr_destroy(&kind);
}
static int lock_soon(pthread_mutex_t *at) {
    struct timespec end; clock_gettime(CLOCK_REALTIME, &end); end.tv_sec += 20;
    return pthread_mutex_timedlock(at, &end);
}
// A thread that locks all and ends without unlocking. Odd ends by the system call itself, as a runtime without libc does.
static void *owner(void *odd) {
    for (int i = 0; i < MUTEXES; i++) CHECK(pthread_mutex_lock(mutex[i]) == 0);
    locked = 1;
    while (!go) usleep(1000);
    if (odd) syscall(SYS_exit, 0);
    return NULL;
}
static void *waiter(void *at) { return (void *)(intptr_t)lock_soon(at); }

static void threads(int protocol, int odd) {
    for (int i = 0; i < MUTEXES; i++) { mutex[i] = (pthread_mutex_t *)(room + i * APART); prepare(mutex[i], protocol, 0); }
    locked = go = 0;
    pthread_t thread, waits; CHECK(pthread_create(&thread, NULL, owner, odd ? mutex : NULL) == 0);
    while (!locked) usleep(1000);
    // One thread waits for the last mutex of the list, which the kernel reaches only past all others.
    CHECK(pthread_create(&waits, NULL, waiter, mutex[0]) == 0);
    push_out(); int away = are_away();
    go = 1;
    void *told; CHECK(pthread_join(waits, &told) == 0);
    if ((intptr_t)told != EOWNERDEAD) { fprintf(stderr, "who waits is told %d, %d of %d were away\n", (int)(intptr_t)told, away, MUTEXES); _exit(1); }
    if (!odd) CHECK(pthread_join(thread, NULL) == 0);
    for (int i = 1; i < MUTEXES; i++) {
        int result = lock_soon(mutex[i]);
        if (result != EOWNERDEAD) { fprintf(stderr, "mutex %d: %d, %d of %d were away\n", i, result, away, MUTEXES); _exit(1); }
        CHECK(pthread_mutex_consistent(mutex[i]) == 0 && pthread_mutex_unlock(mutex[i]) == 0);
    }
    // What the thread that has ended had pinned leaves again.
    push_out();
    for (int i = 1; i < MUTEXES; i++) CHECK(pthread_mutex_lock(mutex[i]) == 0 && pthread_mutex_unlock(mutex[i]) == 0 && pthread_mutex_destroy(mutex[i]) == 0);
}

// A process that ends while it holds a mutex in shared memory, beside one of its own whose page is away.
static void processes(int killed) {
    pthread_mutex_t *shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); CHECK(shared != MAP_FAILED);
    atomic_int *ready = (atomic_int *)((char *)shared + 4096); prepare(shared, PTHREAD_PRIO_NONE, 1);
    pid_t child = fork(); CHECK(child >= 0);
    if (child == 0) {
        prepare((pthread_mutex_t *)room, PTHREAD_PRIO_NONE, 0);
        CHECK(pthread_mutex_lock(shared) == 0);
        if (!killed) CHECK(pthread_mutex_lock((pthread_mutex_t *)room) == 0);
        for (int round = 0; pressure && is_present(room); round++) { CHECK(round < 40); stir(); }
        *ready = 1;
        if (!killed) _exit(0);
        for (;;) pause();
    }
    while (!*ready) usleep(1000);
    if (killed) CHECK(kill(child, SIGKILL) == 0);
    int status; CHECK(waitpid(child, &status, 0) == child);
    CHECK(lock_soon(shared) == EOWNERDEAD && pthread_mutex_consistent(shared) == 0 && pthread_mutex_unlock(shared) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 1); pressure = atoi(argv[1]) * MIB;
    room = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(room != MAP_FAILED);
    threads(PTHREAD_PRIO_NONE, 0);
    threads(PTHREAD_PRIO_INHERIT, 0);
    threads(PTHREAD_PRIO_NONE, 1);
    processes(1);
    processes(0);
    puts("right");
    return 0;
}
