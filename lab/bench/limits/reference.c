// SPDX-License-Identifier: Apache-2.0 OR MIT
// The fixed reference routines: what both sides of every comparison write, read and check with, and the
// limits that a share of the limit is taken of.
//
// Flow     pattern ──writes──▶ source ──(whoever is measured)──▶ target ──▶ xor64 or checksum
// Limits   one read pass = xor64; one copy past the cache = copy_nt; both on one core, as simple as they
//          can be written, so that a share of the limit is a share of what this core and memory really give
// Layout   words are little-endian u64; a tail of fewer than 8 bytes counts as one word padded with zeros
// Order    copy_nt ends with a store fence
// Not here anything under test. This file must stay stupid.
//
// The same source is compiled into the bench crate and into the library that the Python rivals load.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_X86 1
#endif

static uint64_t tail_word(const unsigned char *source, size_t bytes) {
    uint64_t word = 0;
    memcpy(&word, source, bytes);
    return word;
}

static uint64_t xor64_portable(const unsigned char *source, size_t bytes) {
    uint64_t lane[8] = {0};
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
        uint64_t words[8];
        memcpy(words, source + at, 64);
        for (int i = 0; i < 8; i++) lane[i] ^= words[i];
    }
    uint64_t sum = 0;
    for (int i = 0; i < 8; i++) sum ^= lane[i];
    for (; at + 8 <= bytes; at += 8) sum ^= tail_word(source + at, 8);
    if (at < bytes) sum ^= tail_word(source + at, bytes - at);
    return sum;
}

#ifdef HAVE_X86
__attribute__((target("avx2"))) static uint64_t xor64_avx2(const unsigned char *source, size_t bytes) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    size_t at = 0;
    for (; at + 128 <= bytes; at += 128) {
        a = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)(source + at)));
        b = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)(source + at + 32)));
        c = _mm256_xor_si256(c, _mm256_loadu_si256((const __m256i *)(source + at + 64)));
        d = _mm256_xor_si256(d, _mm256_loadu_si256((const __m256i *)(source + at + 96)));
    }
    uint64_t lane[4];
    _mm256_storeu_si256((__m256i *)lane, _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d)));
    return lane[0] ^ lane[1] ^ lane[2] ^ lane[3] ^ xor64_portable(source + at, bytes - at);
}

static void copy_nt_sse2(unsigned char *target, const unsigned char *source, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(source + at));
        __m128i b = _mm_loadu_si128((const __m128i *)(source + at + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(source + at + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(source + at + 48));
        _mm_stream_si128((__m128i *)(target + at), a);
        _mm_stream_si128((__m128i *)(target + at + 16), b);
        _mm_stream_si128((__m128i *)(target + at + 32), c);
        _mm_stream_si128((__m128i *)(target + at + 48), d);
    }
}

__attribute__((target("avx2"))) static void copy_nt_avx2(unsigned char *target, const unsigned char *source,
                                                         size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(source + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(source + at + 32));
        _mm256_stream_si256((__m256i *)(target + at), a);
        _mm256_stream_si256((__m256i *)(target + at + 32), b);
    }
}
#endif

// One read pass: the exclusive or of all words.
uint64_t memlift_reference_xor64(const void *source, size_t bytes) {
#ifdef HAVE_X86
    if (bytes >= 4096 && __builtin_cpu_supports("avx2")) return xor64_avx2(source, bytes);
#endif
    return xor64_portable(source, bytes);
}

// One copy past the cache, from low to high addresses. The areas must not overlap.
void memlift_reference_copy_nt(void *target, const void *source, size_t bytes) {
    unsigned char *to = target;
    const unsigned char *from = source;
#ifdef HAVE_X86
    size_t head = (64 - ((uintptr_t)to & 63)) & 63;
    if (head > bytes) head = bytes;
    memcpy(to, from, head);
    size_t body = (bytes - head) & ~(size_t)63;
    if (__builtin_cpu_supports("avx2"))
        copy_nt_avx2(to + head, from + head, body);
    else
        copy_nt_sse2(to + head, from + head, body);
    memcpy(to + head + body, from + head + body, bytes - head - body);
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

// Writes every byte: word i is a mix of `seed + i`, so two seeds give two different contents.
void memlift_reference_pattern(void *target, size_t bytes, uint64_t seed) {
    unsigned char *to = target;
    size_t at = 0;
    uint64_t index = seed * 0x9e3779b97f4a7c15u;
    for (; at + 8 <= bytes; at += 8, index += 0x9e3779b97f4a7c15u) {
        uint64_t word = index ^ (index >> 29);
        memcpy(to + at, &word, 8);
    }
    if (at < bytes) {
        uint64_t word = index ^ (index >> 29);
        memcpy(to + at, &word, bytes - at);
    }
}

// A checksum that depends on the order of the words, for what exclusive or would not notice.
uint64_t memlift_reference_checksum(const void *source, size_t bytes) {
    const unsigned char *from = source;
    const uint64_t factor = 0xff51afd7ed558ccdu;
    uint64_t lane[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
        uint64_t words[8];
        memcpy(words, from + at, 64);
        for (int i = 0; i < 8; i++) lane[i] = (lane[i] ^ words[i]) * factor;
    }
    for (int i = 0; at < bytes; i = (i + 1) & 7) {
        size_t step = bytes - at < 8 ? bytes - at : 8;
        lane[i] = (lane[i] ^ tail_word(from + at, step)) * factor;
        at += step;
    }
    uint64_t sum = bytes;
    for (int i = 0; i < 8; i++) sum = (sum ^ lane[i] ^ (lane[i] >> 32)) * factor;
    return sum;
}

// Links all cache lines of an area into one cycle in random order (Sattolo), for `chase`.
void memlift_reference_chase_build(void *area, size_t bytes, uint64_t seed) {
    size_t lines = bytes / 64;
    uint64_t *words = area;
    for (size_t i = 0; i < lines; i++) words[i * 8] = i;
    uint64_t state = seed | 1;
    for (size_t i = lines - 1; lines > 1 && i > 0; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        size_t j = (size_t)(state % i);
        uint64_t swap = words[i * 8];
        words[i * 8] = words[j * 8];
        words[j * 8] = swap;
    }
}

// Follows that cycle: every step waits for the line before it.
uint64_t memlift_reference_chase(const void *area, size_t steps) {
    const uint64_t *words = area;
    uint64_t at = 0;
    while (steps--) at = words[at * 8];
    return at;
}
