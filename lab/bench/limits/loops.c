// SPDX-License-Identifier: Apache-2.0 OR MIT
// Plain loops for what copy does besides copying: the rivals of copy_crc, dualcast and fill. Each routine in several
// ways, as somebody would write them down first; the bench takes whichever is fastest here.
//
// Order    loops that store past the cache end with a store fence
// Layout   targets are aligned to 64 bytes and sizes are multiples of 64; the bench sees to that
// Not here anything clever: no lanes, no prefetch, no interleaving

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_X86 1
#endif

#define BLOCK_BYTES 4096

static uint32_t crc_portable(uint32_t state, const unsigned char *source, size_t bytes) {
    for (size_t at = 0; at < bytes; at++) {
        state ^= source[at];
        for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (0x82f63b78u & -(state & 1));
    }
    return state;
}

#ifdef HAVE_X86
__attribute__((target("sse4.2,crc32"))) static uint32_t crc_words(uint32_t state, const unsigned char *source,
                                                             size_t bytes) {
    uint64_t wide = state;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word;
        memcpy(&word, source + at, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    return (uint32_t)wide;
}

__attribute__((target("avx2"))) static void stream(unsigned char *target, const unsigned char *source, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(source + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(source + at + 32));
        _mm256_stream_si256((__m256i *)(target + at), a);
        _mm256_stream_si256((__m256i *)(target + at + 32), b);
    }
}

__attribute__((target("avx2,sse4.2,crc32"))) static uint32_t stream_crc(unsigned char *target, const unsigned char *source,
                                                                  size_t bytes, uint32_t state) {
    uint64_t wide = state;
    for (size_t at = 0; at < bytes; at += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(source + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(source + at + 32));
        _mm256_stream_si256((__m256i *)(target + at), a);
        _mm256_stream_si256((__m256i *)(target + at + 32), b);
        for (int word = 0; word < 64; word += 8) {
            uint64_t value;
            memcpy(&value, source + at + word, 8);
            wide = _mm_crc32_u64(wide, value);
        }
    }
    return (uint32_t)wide;
}

__attribute__((target("avx2"))) static void stream_two(unsigned char *first, unsigned char *second,
                                                       const unsigned char *source, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(source + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(source + at + 32));
        _mm256_stream_si256((__m256i *)(first + at), a);
        _mm256_stream_si256((__m256i *)(first + at + 32), b);
        _mm256_stream_si256((__m256i *)(second + at), a);
        _mm256_stream_si256((__m256i *)(second + at + 32), b);
    }
}

__attribute__((target("avx2"))) static void stream_fill(unsigned char *target, size_t bytes, uint64_t word) {
    __m256i a = _mm256_set1_epi64x((long long)word);
    for (size_t at = 0; at < bytes; at += 32) _mm256_stream_si256((__m256i *)(target + at), a);
}

static int streams(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("sse4.2"); }
#endif

static uint32_t crc(uint32_t state, const unsigned char *source, size_t bytes) {
#ifdef HAVE_X86
    if (__builtin_cpu_supports("sse4.2")) return crc_words(state, source, bytes);
#endif
    return crc_portable(state, source, bytes);
}

// Ways of each routine.
int memlift_loops_ways(void) { return 3; }

// Copies and gives the CRC-32C. 0: block by block through the cache; 1: block by block past it; 2: line by line past it.
uint32_t memlift_loops_copy_crc(int way, void *target, const void *source, size_t bytes) {
    unsigned char *to = target;
    const unsigned char *from = source;
    uint32_t state = ~0u;
#ifdef HAVE_X86
    if (way == 2 && streams()) {
        state = stream_crc(to, from, bytes, state);
        _mm_sfence();
        return ~state;
    }
#endif
    for (size_t at = 0; at < bytes; at += BLOCK_BYTES) {
        size_t part = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
#ifdef HAVE_X86
        if (way == 1 && streams())
            stream(to + at, from + at, part);
        else
#endif
            memcpy(to + at, from + at, part);
        state = crc(state, from + at, part);
    }
#ifdef HAVE_X86
    _mm_sfence();
#endif
    return ~state;
}

// Copies to two targets. 0: block by block through the cache; 1: past it; 2: one target after the other.
void memlift_loops_dualcast(int way, void *first, void *second, const void *source, size_t bytes) {
    unsigned char *to = first, *to2 = second;
    const unsigned char *from = source;
#ifdef HAVE_X86
    if (way == 1 && streams()) {
        stream_two(to, to2, from, bytes);
        _mm_sfence();
        return;
    }
    if (way == 2 && streams()) {
        stream(to, from, bytes);
        stream(to2, from, bytes);
        _mm_sfence();
        return;
    }
#endif
    for (size_t at = 0; at < bytes; at += BLOCK_BYTES) {
        size_t part = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        memcpy(to + at, from + at, part);
        memcpy(to2 + at, from + at, part);
    }
}

// Fills with a word. 0: words, as the compiler widens them; 1 and 2: past the cache.
void memlift_loops_fill(int way, void *target, size_t bytes, uint64_t word) {
    unsigned char *to = target;
#ifdef HAVE_X86
    if (way != 0 && streams()) {
        stream_fill(to, bytes, word);
        _mm_sfence();
        return;
    }
#endif
    for (size_t at = 0; at < bytes; at += 8) memcpy(to + at, &word, 8);
}
