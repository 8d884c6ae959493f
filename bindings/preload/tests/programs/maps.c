// SPDX-License-Identifier: Apache-2.0 OR MIT
// The mmap family against what the kernel would do.
#include "check.h"
#include <fcntl.h>
#include <sys/syscall.h>

int main(int argc, char **argv) {
    size_t pressure = (argc > 1 ? atoi(argv[1]) : 64) * MIB;
    size_t bytes = 16 * MIB;
    unsigned char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(p != MAP_FAILED);
    for (size_t i = 0; i < bytes; i += 4096) CHECK(p[i] == 0);
    fill(p, bytes, 1); press(pressure);
    // Growing, moving, shrinking.
    p = mremap(p, bytes, 3 * bytes, MREMAP_MAYMOVE); CHECK(p != MAP_FAILED); CHECK(same(p, bytes, 1));
    for (size_t i = bytes; i < 3 * bytes; i += 4096) CHECK(p[i] == 0);
    press(pressure); p = mremap(p, 3 * bytes, bytes, 0); CHECK(p != MAP_FAILED); CHECK(same(p, bytes, 1));
    // A hole, filled again with zeros.
    press(pressure); CHECK(munmap(p + 4 * MIB, 4 * MIB) == 0);
    CHECK(mmap(p + 4 * MIB, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + 4 * MIB);
    for (size_t i = 4 * MIB; i < 8 * MIB; i++) CHECK(p[i] == 0);
    CHECK(same(p, 4 * MIB, 1)); for (size_t i = 8 * MIB; i < bytes; i++) CHECK(p[i] == byte_of(1, i));
    // Advice.
    press(pressure); CHECK(madvise(p + MIB, MIB, MADV_DONTNEED) == 0); for (size_t i = MIB; i < 2 * MIB; i++) CHECK(p[i] == 0);
    CHECK(same(p, MIB, 1)); CHECK(posix_madvise(p, MIB, POSIX_MADV_DONTNEED) == 0); CHECK(same(p, MIB, 1));
    CHECK(madvise(p, MIB, MADV_WILLNEED) == 0); CHECK(madvise(p, MIB, MADV_HUGEPAGE) == 0); CHECK(madvise(p, MIB, 12345) == -1 && errno == EINVAL);
    // Protection and back; locks; what is mapped.
    press(pressure); CHECK(mprotect(p, MIB, PROT_READ) == 0); CHECK(same(p, MIB, 1)); CHECK(mprotect(p, MIB, PROT_READ | PROT_WRITE) == 0); fill(p, MIB, 2); CHECK(same(p, MIB, 2));
    CHECK(mlock(p, MIB) == 0 && munlock(p, MIB) == 0); unsigned char *vector = malloc(256); CHECK(mincore(p, MIB, vector) == 0);
    unsigned char *gone = mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(munmap(gone, MIB) == 0); CHECK(mincore(gone, MIB, vector) == -1 && errno == ENOMEM);
    CHECK(madvise(gone, MIB, MADV_DONTNEED) == -1 && errno == ENOMEM); CHECK(munmap(gone, MIB) == 0); CHECK(munmap(gone + 1, MIB) == -1 && errno == EINVAL);
    // A file over a part, and away again.
    char name[] = "/tmp/memlift-maps-XXXXXX"; int fd = mkstemp(name); unlink(name); unsigned char page[8192]; fill(page, sizeof page, 3); CHECK(write(fd, page, sizeof page) == sizeof page);
    CHECK(mmap(p + 12 * MIB, 8192, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == p + 12 * MIB);
    press(pressure); CHECK(same(p + 12 * MIB, 8192, 3)); CHECK(p[12 * MIB + 8192] == byte_of(1, 12 * MIB + 8192));
    CHECK(munmap(p + 12 * MIB, 8192) == 0);
    // By the system call itself.
    unsigned char *q = (unsigned char *)syscall(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); fill(q, bytes, 5); press(pressure); CHECK(same(q, bytes, 5)); CHECK(syscall(SYS_munmap, q, bytes) == 0);
    // Reservations are not memory.
    unsigned char *large = mmap(NULL, 64ul << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); CHECK(large != MAP_FAILED);
    CHECK(mprotect(large + (1ul << 30), MIB, PROT_READ | PROT_WRITE) == 0); fill(large + (1ul << 30), MIB, 6); press(pressure); CHECK(same(large + (1ul << 30), MIB, 6)); CHECK(munmap(large, 64ul << 30) == 0);
    // Small, shared, for stacks: elsewhere, and working.
    unsigned char *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); fill(shared, MIB, 8); press(pressure); CHECK(same(shared, MIB, 8));
    CHECK(munmap(p, bytes) == 0);
    puts("right");
    return 0;
}
