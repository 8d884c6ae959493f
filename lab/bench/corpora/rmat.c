// SPDX-License-Identifier: Apache-2.0 OR MIT
// Edges of an R-MAT graph, one after the other: the generator of zmem's graph jobs and of the PageRank workload.
//
// Flow     a state ─▶ eight levels per draw of SplitMix64 ─▶ one quadrant per level ─▶ both ends, shuffled by a bijection, so that
//          neighbours do not lie together by construction
// Source   the probabilities are Graph500's (A = 0.57, B = C = 0.19), to 1/256: A = 146, B = C = 49, D = 12
// Order    the same state gives the same edges; a call goes on where the last one ended
//
// Compiled into the bench crate and into the library that Python loads.

#include <stdint.h>

static uint64_t draw(uint64_t *state) {
    uint64_t value = *state += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

// Writes `count` edges of a graph of 2^scale vertices (scale at most 31) as pairs: from, to.
void memlift_corpora_rmat(uint64_t *state, uint32_t scale, uint64_t count, uint32_t *edges) {
    uint32_t mask = ((uint32_t)1 << scale) - 1;
    for (uint64_t edge = 0; edge < count; edge++) {
        uint32_t from = 0, to = 0;
        uint64_t bits = 0;
        for (uint32_t level = 0; level < scale; level++) {
            bits = level % 8 == 0 ? draw(state) : bits >> 8;
            uint32_t at = bits & 255;
            from = from << 1 | (at >= 195);
            to = to << 1 | ((at >= 146 && at < 195) || at >= 244);
        }
        edges[2 * edge] = (from * 0x9e3779b1u) & mask;
        edges[2 * edge + 1] = (to * 0x9e3779b1u) & mask;
    }
}
