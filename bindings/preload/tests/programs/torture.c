// SPDX-License-Identifier: Apache-2.0 OR MIT
// Threads, forks, the mmap family, malloc and system calls at random, contents checked, until the time is over.
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

enum { SLOTS = 24 };
struct area { unsigned char *at; size_t bytes; uint64_t seed; int mapped; };
static size_t share; static time_t end; static _Atomic unsigned long steps;

static void drop(struct area *a) { if (!a->at) return; if (a->mapped) CHECK(munmap(a->at, a->bytes) == 0); else free(a->at); a->at = NULL; }
static void make(struct area *a, uint64_t r) {
    a->bytes = (r >> 8) % share + 1; a->seed = r; a->mapped = r & 1;
    if (a->mapped) { a->bytes = (a->bytes + 4095) & ~4095ul; a->at = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(a->at != MAP_FAILED); }
    else { a->at = malloc(a->bytes); CHECK(a->at); }
    fill(a->at, a->bytes, a->seed);
}
static void step(struct area *areas, uint64_t r, int fd, int deep) {
    struct area *a = &areas[r % SLOTS]; unsigned kind = (r >> 40) % 16;
    if (!a->at) { make(a, r); return; }
    switch (kind) {
    case 0: case 1: drop(a); break;
    case 2: fill(a->at, a->bytes, a->seed = r); break;
    case 3: if (a->mapped) { size_t n = ((r >> 9) % share + 4096) & ~4095ul; a->at = mremap(a->at, a->bytes, n, MREMAP_MAYMOVE); CHECK(a->at != MAP_FAILED); CHECK(same(a->at, n < a->bytes ? n : a->bytes, a->seed)); a->bytes = n; }
        else { size_t n = (r >> 9) % share + 1; a->at = realloc(a->at, n); CHECK(same(a->at, n < a->bytes ? n : a->bytes, a->seed)); a->bytes = n; }
        fill(a->at, a->bytes, a->seed = r); break;
    case 4: CHECK(pwrite(fd, a->at, a->bytes, 0) == (ssize_t)a->bytes); memset(a->at, 1, a->bytes); CHECK(pread(fd, a->at, a->bytes, 0) == (ssize_t)a->bytes); break;
    case 5: { size_t half = a->bytes / 2; struct iovec v[2] = { { a->at, half }, { a->at + half, a->bytes - half } }; CHECK(pwritev(fd, v, 2, 4096) == (ssize_t)a->bytes); CHECK(preadv(fd, v, 2, 4096) == (ssize_t)a->bytes); break; }
    case 6: { int p[2]; CHECK(pipe(p) == 0); size_t n = a->bytes < 65536 ? a->bytes : 65536; CHECK(write(p[1], a->at, n) == (ssize_t)n); memset(a->at, 2, n); size_t done = 0; while (done < n) { ssize_t got = read(p[0], a->at + done, n - done); CHECK(got > 0); done += got; } close(p[0]); close(p[1]); break; }
    case 7: if (a->mapped) { CHECK(mprotect(a->at, a->bytes, PROT_READ) == 0); CHECK(same(a->at, a->bytes, a->seed)); CHECK(mprotect(a->at, a->bytes, PROT_READ | PROT_WRITE) == 0); } break;
    case 8: if (a->mapped) { CHECK(madvise(a->at, a->bytes, MADV_DONTNEED) == 0); for (size_t i = 0; i < a->bytes; i += 512) CHECK(a->at[i] == 0); fill(a->at, a->bytes, a->seed = r); } break;
    case 9: if (deep == 0 && (r >> 50) % 8 == 0) {
            pid_t child = fork(); CHECK(child >= 0);
            if (child == 0) { for (int i = 0; i < SLOTS; i++) if (areas[i].at) CHECK(same(areas[i].at, areas[i].bytes, areas[i].seed)); for (int i = 0; i < 20; i++) step(areas, r = mixed(r + i), fd, 1); for (int i = 0; i < SLOTS; i++) if (areas[i].at) CHECK(same(areas[i].at, areas[i].bytes, areas[i].seed)); _exit(0); }
            int status; CHECK(waitpid(child, &status, 0) == child); CHECK(status == 0); } break;
    default: break;
    }
    CHECK(!a->at || same(a->at, a->bytes, a->seed));
}
static void *work(void *at) {
    struct area areas[SLOTS] = { 0 }; uint64_t r = (uint64_t)at * 77 + 5;
    char name[] = "/tmp/memlift-torture-XXXXXX"; int fd = mkostemp(name, O_CLOEXEC); CHECK(fd >= 0); unlink(name);
    while (time(NULL) < end) { r = mixed(r + 0x51ed270b); step(areas, r, fd, 0); steps++; }
    for (int i = 0; i < SLOTS; i++) { if (areas[i].at) CHECK(same(areas[i].at, areas[i].bytes, areas[i].seed)); drop(&areas[i]); }
    return NULL;
}
int main(int argc, char **argv) {
    size_t count = 3; end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 10); share = (argc > 2 ? atoi(argv[2]) : 64) * MIB / count / SLOTS * 2;
    pthread_t threads[8]; for (size_t t = 0; t < count; t++) pthread_create(&threads[t], NULL, work, (void *)t);
    for (size_t t = 0; t < count; t++) pthread_join(threads[t], NULL);
    CHECK(steps > 0); puts("right");
    return 0;
}
