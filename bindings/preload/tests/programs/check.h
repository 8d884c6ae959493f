// SPDX-License-Identifier: Apache-2.0 OR MIT
// Memory with known contents, and pressure that sends it away.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define CHECK(condition) do { if (!(condition)) { \
    fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); _exit(1); } } while (0)

static inline uint64_t mixed(uint64_t x) { x ^= x >> 31; x *= 0x9e3779b97f4a7c15ull; x ^= x >> 29; return x; }
static inline unsigned char byte_of(uint64_t seed, size_t at) { return (unsigned char)(mixed(seed + at / 64) >> (at % 8)); }
static inline void fill(unsigned char *to, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i += 64) { uint64_t m = mixed(seed + i / 64); for (size_t j = i; j < i + 64 && j < bytes; j++) to[j] = (unsigned char)(m >> (j % 8)); }
}
static inline int same(const unsigned char *at, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i += 64) {
        uint64_t m = mixed(seed + i / 64);
        for (size_t j = i; j < i + 64 && j < bytes; j++)
            if (at[j] != (unsigned char)(m >> (j % 8))) { fprintf(stderr, "byte %zu of seed %lu at %p is %x\n", j, (unsigned long)seed, at + j, at[j]); return 0; }
    }
    return 1;
}

// Memory that nobody needs, more than the budget: what was touched before goes away.
static unsigned char *burden;
static size_t burden_bytes;
static inline void press(size_t bytes) {
    if (burden_bytes < bytes) { burden = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); burden_bytes = bytes; }
    for (size_t i = 0; i < bytes; i += 4096) { memset(burden + i, (int)(i >> 12), 64); }
    for (size_t i = 0; i < bytes; i += 4096) CHECK(burden[i] == (unsigned char)(i >> 12));
}
