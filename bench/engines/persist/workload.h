// SPDX-License-Identifier: Apache-2.0 OR MIT
// What the parts of the libpmemobj rival share: the draw, the clock, the reference routines, the maps.
#ifndef MEMLIFT_WORKLOAD_H
#define MEMLIFT_WORKLOAD_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <libpmemobj.h>

#define RECORD_BYTES 64

void memlift_reference_pattern(void *target, size_t bytes, uint64_t seed);
uint64_t memlift_reference_checksum(const void *source, size_t bytes);

// splitmix64: no value comes twice from one seed.
static inline uint64_t draw(uint64_t *state) {
    uint64_t word = *state += 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

static inline double seconds_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static inline void fail(const char *what) {
    fprintf(stderr, "libpmemobj: %s: %s\n", what, pmemobj_errormsg());
    exit(1);
}

// A map of the examples, by name.
struct maps;
struct maps *maps_open(const char *kind, const char *path, size_t pool_bytes);
void maps_insert(struct maps *maps, uint64_t key);
uint64_t maps_checksum(struct maps *maps, uint64_t *count);
void maps_close(struct maps *maps);

#endif
