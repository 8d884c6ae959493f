// SPDX-License-Identifier: Apache-2.0 OR MIT
// Waits on futexes whose memory goes away: a wait that is stopped and goes on, one for a mutex with priority inheritance, and more waits
// at a time than a page can count pins.
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

static pthread_mutex_t *mutex; static pthread_cond_t *changed; static int *over;
static atomic_int waiting;
static size_t pressure;

static void *wait_long(void *limit) {
    struct timespec end; clock_gettime(CLOCK_REALTIME, &end); end.tv_sec += 60;
    CHECK(pthread_mutex_lock(mutex) == 0); waiting++;
    while (!*over) CHECK((limit ? pthread_cond_timedwait(changed, mutex, &end) : pthread_cond_wait(changed, mutex)) == 0);
    CHECK(pthread_mutex_unlock(mutex) == 0);
    return NULL;
}
static atomic_int owned, go;
static void *own_inherited(void *at) { CHECK(pthread_mutex_lock(at) == 0); owned = 1; while (!go) usleep(1000); CHECK(pthread_mutex_unlock(at) == 0); return NULL; }
static void *lock_inherited(void *at) { waiting++; int result = pthread_mutex_lock(at); CHECK(result == 0 && pthread_mutex_unlock(at) == 0); return NULL; }

static int is_present(void *at) {
    int file = open("/proc/self/pagemap", O_RDONLY); uint64_t word; CHECK(file >= 0);
    CHECK(pread(file, &word, 8, (long)((uintptr_t)at / 4096 * 8)) == 8); close(file); return word >> 63;
}
static void push_out(void *at) {
    for (int round = 0; pressure && (round < 2 || (at && is_present(at))); round++) { CHECK(round < 100); press(pressure); }
}

int main(int argc, char **argv) {
    CHECK(argc > 2); pressure = atoi(argv[1]) * MIB; int count = atoi(argv[2]);
    // The two mutexes are so far apart that one may be pinned while the other leaves.
    unsigned char *room = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(room != MAP_FAILED);
    mutex = (pthread_mutex_t *)room; changed = (pthread_cond_t *)(room + 8192); over = (int *)(room + 16384);
    pthread_mutex_t *inherited = (pthread_mutex_t *)(room + 6 * MIB); pthread_mutexattr_t kind;
    CHECK(pthread_mutex_init(mutex, NULL) == 0 && pthread_cond_init(changed, NULL) == 0);
    CHECK(pthread_mutexattr_init(&kind) == 0 && pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT) == 0 && pthread_mutex_init(inherited, &kind) == 0);
    // Two waits from before memory is short.
    pthread_t first, owner, heir; CHECK(pthread_create(&owner, NULL, own_inherited, inherited) == 0);
    while (!owned) usleep(1000);
    CHECK(pthread_create(&first, NULL, wait_long, room) == 0 && pthread_create(&heir, NULL, lock_inherited, inherited) == 0);
    while (waiting < 2) usleep(1000);
    usleep(100000);
    push_out(changed);
    pid_t parent = getpid(), child = fork(); CHECK(child >= 0);
    if (child == 0) { usleep(50000); kill(parent, SIGSTOP); usleep(200000); kill(parent, SIGCONT); _exit(0); }
    int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
    push_out(NULL); go = 1; CHECK(pthread_join(owner, NULL) == 0 && pthread_join(heir, NULL) == 0);
    // Waits from now on.
    pthread_attr_t small; pthread_t *threads = calloc(count, sizeof *threads); CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 65536) == 0);
    for (int i = 0; i < count; i++) CHECK(pthread_create(&threads[i], &small, wait_long, i % 2 ? room : NULL) == 0);
    while (waiting < count + 2) usleep(1000);
    push_out(NULL);
    CHECK(pthread_mutex_lock(mutex) == 0); *over = 1; CHECK(pthread_cond_broadcast(changed) == 0 && pthread_mutex_unlock(mutex) == 0);
    CHECK(pthread_join(first, NULL) == 0);
    for (int i = 0; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    puts("right");
    return 0;
}
