/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Kernel 2 of 4, find in the chain of one bucket: Boost bimap, unordered_map, unordered_set (and libstdc++'s, which differ in
 * how the end of a bucket is seen).
 *
 * Layout   scratchpad 0 key · 8 bucket (its number) · 16 value · 24 previous node · 32 buckets (how many)
 * Flow     the includer defines NODE_KEY, NODE_VALUE, NODE_NEXT of a node at `node`, and HASH_LEFT(node, state): whether the
 *          chain has left the bucket
 */
#include "../memlift_walk.h"

struct state {
    uint64_t key;
    uint64_t bucket;
    uint64_t value;
    uint64_t previous;
    uint64_t buckets;
    uint64_t at;
};

MEMLIFT_INLINE uint64_t word(const uint8_t *node, int offset)
{
    return *(const uint64_t *)(node + offset);
}

MEMLIFT_INLINE int left(const uint8_t *node, const struct state *state);

/* At the client: `first` is the first node of the bucket (an empty bucket is not walked). */
MEMLIFT_INLINE uint64_t init(struct state *state, uint64_t key, uint64_t buckets, uint64_t first)
{
    state->key = key;
    state->buckets = buckets;
    state->bucket = key % buckets;
    state->at = first;
    return first;
}

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const uint8_t *node = node_;
    struct state *state = scratch;
    if (left(node, state))
        return MEMLIFT_MISSING;
    if (word(node, NODE_KEY) == state->key) {
        state->value = word(node, NODE_VALUE);
        return MEMLIFT_DONE;
    }
    uint64_t next = word(node, NODE_NEXT);
    if (next == 0)
        return MEMLIFT_MISSING;
    state->previous = state->at;
    state->at = next;
    return memlift_next(walk, next);
}
