// SPDX-License-Identifier: Apache-2.0 OR MIT
// What making bytes durable costs when nothing else is done: the rivals of pages and the limit of a commit.
//
// Limits   one loaded fence = stream_fence: a few lines stored past the cache, then a store fence; no log can commit for less
// Rivals   one page = copy_flush: memcpy, clwb of every line, a store fence. Where there is no clwb: clflushopt, else clflush
// Not here anything under test. This file must stay stupid.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define LINE_BYTES 64

// How copy_flush writes a line back here.
const char *memlift_reference_flush_name(void) {
#if defined(__x86_64__)
    unsigned a, b = 0, c, d;
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
    if (b & (1u << 24)) return "clwb";
    if (b & (1u << 23)) return "clflushopt";
    return "clflush";
#else
    return "no flush";
#endif
}

#if defined(__x86_64__)
__attribute__((target("clwb"))) static void flush_clwb(char *from, const char *end) {
    for (; from < end; from += LINE_BYTES) _mm_clwb(from);
}

__attribute__((target("clflushopt"))) static void flush_clflushopt(char *from, const char *end) {
    for (; from < end; from += LINE_BYTES) _mm_clflushopt(from);
}
#endif

// A copy through the cache, written back line by line, and a store fence. The target begins at a line.
void memlift_reference_copy_flush(void *target, const void *source, size_t bytes) {
    memcpy(target, source, bytes);
#if defined(__x86_64__)
    static int way;
    if (!way) {
        const char *name = memlift_reference_flush_name();
        way = name[2] == 'w' ? 1 : name[7] ? 2 : 3;
    }
    char *from = target;
    const char *end = from + bytes;
    if (way == 1)
        flush_clwb(from, end);
    else if (way == 2)
        flush_clflushopt(from, end);
    else
        for (; from < end; from += LINE_BYTES) _mm_clflush(from);
    _mm_sfence();
#endif
}

// `bytes`, whole lines, stored past the cache from the registers, and a store fence.
void memlift_reference_stream_fence(void *target, size_t bytes, uint64_t word) {
#if defined(__x86_64__)
    __m128i value = _mm_set1_epi64x((long long)word);
    for (size_t at = 0; at < bytes; at += 16) _mm_stream_si128((__m128i *)((char *)target + at), value);
    _mm_sfence();
#else
    for (size_t at = 0; at < bytes; at += 8) memcpy((char *)target + at, &word, 8);
    __sync_synchronize();
#endif
}
