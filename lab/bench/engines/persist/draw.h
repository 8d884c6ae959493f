// SPDX-License-Identifier: Apache-2.0 OR MIT
// What all rivals in C share: the draw, the clock, the reference routines.
#ifndef MEMLIFT_DRAW_H
#define MEMLIFT_DRAW_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void memlift_reference_pattern(void *target, size_t bytes, uint64_t seed);
uint64_t memlift_reference_checksum(const void *source, size_t bytes);
void memlift_reference_copy_flush(void *target, const void *source, size_t bytes);
const char *memlift_reference_flush_name(void);

// The finaliser of splitmix64.
static inline uint64_t spread(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

// splitmix64: no value comes twice from one seed.
static inline uint64_t draw(uint64_t *state) {
    return spread(*state += 0x9e3779b97f4a7c15u);
}

static inline double seconds_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

#endif
