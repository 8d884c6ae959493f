// SPDX-License-Identifier: Apache-2.0 OR MIT
// Files and shared memory placed over parts of memory that goes away: as loaders do.
#include "check.h"
#include <fcntl.h>
#include <sys/wait.h>

static size_t pressure;
static void same_in_child(unsigned char *at, size_t bytes, uint64_t seed) {
    pid_t child = fork(); CHECK(child >= 0);
    if (child == 0) { CHECK(same(at, bytes, seed)); press(pressure); CHECK(same(at, bytes, seed)); _exit(0); }
    int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
}
int main(int argc, char **argv) {
    pressure = (argc > 1 ? atoi(argv[1]) : 24) * MIB; size_t bytes = 8 * MIB; press(pressure);
    char name[] = "/tmp/memlift-overlays-XXXXXX"; int fd = mkstemp(name); CHECK(fd >= 0); unlink(name);
    unsigned char *contents = malloc(64 << 10); fill(contents, 64 << 10, 3); CHECK(write(fd, contents, 64 << 10) == 64 << 10);
    for (int round = 0; round < 4; round++) {
        unsigned char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(p != MAP_FAILED);
        if (round % 2) { fill(p, bytes, 1); press(pressure); }
        // A private copy of a file, written to; few pages of ours on each side are near enough to leave together.
        unsigned char *file = p + 3 * MIB;
        CHECK(mmap(file, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == file);
        fill(p, 3 * MIB, 1); fill(p + 3 * MIB + (64 << 10), 5 * MIB - (64 << 10), 2); CHECK(same(file, 64 << 10, 3)); fill(file, 64 << 10, 4);
        press(pressure); CHECK(same(p, 3 * MIB, 1)); CHECK(same(file, 64 << 10, 4)); CHECK(same(p + 3 * MIB + (64 << 10), 5 * MIB - (64 << 10), 2));
        same_in_child(file, 64 << 10, 4); same_in_child(p, 3 * MIB, 1);
        CHECK(mprotect(file, 4096, PROT_READ) == 0); CHECK(same(file, 64 << 10, 4)); CHECK(pwrite(fd, file, 8192, 1 << 20) == 8192); CHECK(mprotect(file, 4096, PROT_READ | PROT_WRITE) == 0); file[0] = byte_of(4, 0);
        CHECK(pread(fd, file, 8192, 1 << 20) == 8192); CHECK(same(file, 64 << 10, 4)); press(pressure);
        // What is shared cannot lie among pages that go away: it is refused, and what was there stays.
        int shared = memfd_create("shared", 0); CHECK(shared >= 0 && ftruncate(shared, MIB) == 0);
        CHECK(mmap(p + 5 * MIB, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shared, 0) == MAP_FAILED && errno == ENOTSUP); close(shared);
        CHECK(same(p + 3 * MIB + (64 << 10), 5 * MIB - (64 << 10), 2));
        // Half of it lies behind the end of the file; a device of zeros.
        CHECK(mmap(p + 5 * MIB, 128 << 10, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 60 << 10) == p + 5 * MIB); CHECK(memcmp(p + 5 * MIB, contents + (60 << 10), 4 << 10) == 0);
        int zero = open("/dev/zero", O_RDWR); CHECK(mmap(p + 6 * MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, zero, 0) == p + 6 * MIB); for (size_t j = 0; j < MIB; j++) CHECK(p[6 * MIB + j] == 0); close(zero);
        // Ours again: zeros, also in the smallest pieces.
        CHECK(munmap(file, 64 << 10) == 0); CHECK(munmap(p + 5 * MIB, 2 * MIB) == 0);
        for (int i = 0; i < 8; i++) { unsigned char *q = mmap(NULL, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(q != MAP_FAILED); for (size_t j = 0; j < 64 << 10; j++) CHECK(q[j] == 0); fill(q, 64 << 10, 6); press(pressure / 4); CHECK(same(q, 64 << 10, 6)); CHECK(munmap(q, 64 << 10) == 0); }
        CHECK(mmap(file, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == file);
        for (size_t j = 0; j < 64 << 10; j++) CHECK(file[j] == 0);
        fill(file, 64 << 10, 7); press(pressure); CHECK(same(file, 64 << 10, 7)); CHECK(same(p, 3 * MIB, 1)); CHECK(munmap(p, bytes) == 0);
    }
    puts("right");
    return 0;
}
