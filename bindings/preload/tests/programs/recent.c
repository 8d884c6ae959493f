// SPDX-License-Identifier: Apache-2.0 OR MIT
// Rare and recent calls say the same with their memory present and with it away; advice of a process for itself is the pager's.
#include "check.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

static size_t pressure;
// Memory of its own page, among pages that stay: two pages apart.
static void *page(const void *bytes, size_t count) {
    static unsigned char *pool; static int next;
    if (!pool) { pool = malloc(4 * MIB); memset(pool, 1, 4 * MIB); }
    unsigned char *at = pool + next++ * 8192;
    memset(at, 0, 4096);
    if (bytes) memcpy(at, bytes, count);
    return at;
}
static void *text(const char *bytes) { return page(bytes, strlen(bytes) + 1); }
#define SAME(name, expression) do { long first, first_error, second; \
    errno = 0; first = (expression); first_error = first < 0 ? errno : 0; press(pressure); \
    errno = 0; second = (expression); \
    if (first != second || first_error != (second < 0 ? errno : 0)) { fprintf(stderr, "%s: %ld (%ld), then %ld (%d)\n", name, first, first_error, second, errno); _exit(1); } } while (0)

struct waiter { unsigned long value, address; unsigned flags, reserved; };
static unsigned *word;
static void *wake(void *unused) { usleep(200000); __atomic_store_n(word, 7, __ATOMIC_RELEASE); syscall(SYS_futex, word, FUTEX_WAKE, 10, NULL, NULL, 0); return unused; }

int main(int count, char **arguments) {
    pressure = (count > 1 ? strtoul(arguments[1], NULL, 10) : 64) * MIB;
    int file = open("/proc/self/exe", O_RDONLY), notes = (int)syscall(SYS_fanotify_init, 0, 0);
    CHECK(file >= 0);
    void *a = text("/tmp"), *b = page(NULL, 0), *c = text("user.none"), *d = page((unsigned long[]){ 0, 4096 }, 16), *e = page((unsigned long[]){ 1 }, 8);
    unsigned *size = page(&(unsigned){ 4096 }, 4);
    SAME("landlock_create_ruleset", syscall(444, e, 8, 0) >= 0);
    SAME("cachestat", syscall(451, file, d, b, 0));
    SAME("fanotify_mark", syscall(SYS_fanotify_mark, notes, 1, 0x20, AT_FDCWD, a));
    SAME("open_tree", syscall(428, AT_FDCWD, a, 0) >= 0);
    SAME("setxattrat", syscall(463, AT_FDCWD, a, 0, c, b, 16));
    SAME("lsm_get_self_attr", syscall(459, 100, b, size, 0));
    SAME("mincore", syscall(SYS_mincore, (unsigned long)main & ~4095ul, 4096, b));
    SAME("mbind", syscall(SYS_mbind, (unsigned long)main & ~4095ul, 4096, 0, b, 0, 0));
    SAME("delete_module", syscall(SYS_delete_module, c, 0));
    SAME("modify_ldt", syscall(SYS_modify_ldt, 0, b, 64));

    // Futexes that wait in a list of futexes, and one that waits by the newer call.
    for (int way = 0; way < 2; way++) {
        pthread_t thread;
        struct timespec end, *until;
        word = page(NULL, 0);
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec += 100;
        until = page(&end, sizeof end);
        struct waiter *waiter = page(&(struct waiter){ 0, (unsigned long)word, 2, 0 }, sizeof *waiter);
        press(pressure);
        CHECK(pthread_create(&thread, NULL, wake, NULL) == 0);
        long result = way ? syscall(455, word, 0, -1, 2, until, CLOCK_MONOTONIC) : syscall(449, waiter, 1, 0, until, CLOCK_MONOTONIC);
        if (result && errno != EAGAIN && errno != ENOSYS) fprintf(stderr, "way %d: %ld (%d)\n", way, result, errno);
        CHECK(result == 0 || errno == EAGAIN || errno == ENOSYS);
        CHECK(pthread_join(thread, NULL) == 0 && *word == 7);
    }

    // Dropped memory reads as zeros, and can be used again.
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    unsigned char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own >= 0 && memory != MAP_FAILED);
    fill(memory, 8 * MIB, 5);
    press(pressure);
    struct iovec *parts = page((struct iovec[]){ { memory, MIB }, { memory + 4 * MIB, MIB } }, 2 * sizeof *parts);
    press(pressure);
    long done = syscall(SYS_process_madvise, own, parts, 2, MADV_DONTNEED, 0);
    if (done == -1 && errno == EINVAL) { puts("right"); return 0; }
    CHECK(done == 2 * (long)MIB);
    for (size_t i = 0; i < MIB; i++) CHECK(memory[i] == 0 && memory[4 * MIB + i] == 0);
    CHECK(same(memory + MIB, 3 * MIB, 5 + MIB / 64) && same(memory + 5 * MIB, 3 * MIB, 5 + 5 * MIB / 64));
    fill(memory, MIB, 9);
    press(pressure);
    CHECK(same(memory, MIB, 9));
    CHECK(syscall(SYS_process_madvise, own, parts, 2, 12345, 0) == -1 && errno == EINVAL);
    puts("right");
}
