// SPDX-License-Identifier: Apache-2.0 OR MIT
// Calls that wait with pinned buffers while neighbours of these buffers are mapped, moved and unmapped.
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

enum { READERS = 6, SMALL = 64 << 10, MOVED = 24 };
static int pipes[READERS][2];
static void *wait_for_bytes(void *at) {
    size_t index = (size_t)at; unsigned char *buffer = mmap(NULL, SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(buffer, SMALL, index); ssize_t got = read(pipes[index][0], buffer + 4096, SMALL - 4096);
    CHECK(got == 100 && same(buffer + 4096, 100, 1000 + index)); fill(buffer + 4096, 100, 0);
    for (size_t i = 0; i < SMALL; i++) if (i < 4096 || i >= 4196) CHECK(buffer[i] == byte_of(index, i));
    return buffer;
}
int main(int argc, char **argv) {
    size_t pressure = (argc > 1 ? atoi(argv[1]) : 24) * MIB; pthread_t threads[READERS];
    unsigned char *moved[MOVED]; size_t bytes[MOVED];
    for (int i = 0; i < MOVED; i++) { bytes[i] = SMALL; moved[i] = mmap(NULL, SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); fill(moved[i], SMALL, 50 + i);
        if (i % 4 == 0) { size_t r = i / 4; CHECK(pipe(pipes[r]) == 0); CHECK(pthread_create(&threads[r], NULL, wait_for_bytes, (void *)r) == 0); usleep(1000); } }
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < MOVED; i++) {
            size_t grown = bytes[i] == SMALL ? 3 * SMALL : bytes[i] == 3 * SMALL ? 2 * SMALL : SMALL;
            if (i % 3 == 0) CHECK(mprotect(moved[i], bytes[i], PROT_READ) == 0);
            moved[i] = mremap(moved[i], bytes[i], grown, MREMAP_MAYMOVE); CHECK(moved[i] != MAP_FAILED);
            CHECK(same(moved[i], SMALL, 50 + i)); bytes[i] = grown;
            if (i % 3 == 0) CHECK(mprotect(moved[i], bytes[i], PROT_READ | PROT_WRITE) == 0);
        }
        unsigned char *place = mmap(NULL, SMALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mremap(moved[round], bytes[round], SMALL, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place); moved[round] = place; bytes[round] = SMALL; CHECK(same(place, SMALL, 50 + round));
        if (round > 1) press(pressure);
        pid_t child = fork(); if (child == 0) { for (int i = 0; i < MOVED; i++) CHECK(same(moved[i], SMALL, 50 + i)); _exit(0); }
        int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    unsigned char bytes100[100];
    for (size_t r = 0; r < READERS; r++) { fill(bytes100, 100, 1000 + r); CHECK(write(pipes[r][1], bytes100, 100) == 100); void *buffer; CHECK(pthread_join(threads[r], &buffer) == 0 && buffer); }
    puts("right");
    return 0;
}
