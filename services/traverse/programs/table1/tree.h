/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Kernel 3 of 4, lower_bound in a binary tree: STL map, multimap, set, multiset; Boost's AVL, splay and scapegoat trees (whose
 * const find does not rebalance).
 *
 * Layout   scratchpad 0 key · 8 exact (1: find, 0: lower_bound) · 16 value · 24 key of the bound · 32 its node, 0 if there is
 *          none · 40 the node that is being looked at
 * Flow     the includer defines NODE_LEFT, NODE_RIGHT, NODE_KEY, NODE_VALUE; a missing child is 0
 */
#include "../memlift_walk.h"

struct state {
    uint64_t key;
    uint64_t exact;
    uint64_t value;
    uint64_t bound_key;
    uint64_t bound;
    uint64_t at;
};

MEMLIFT_INLINE uint64_t word(const uint8_t *node, int offset)
{
    return *(const uint64_t *)(node + offset);
}

/* At the client: an empty tree is not walked. */
MEMLIFT_INLINE uint64_t init(struct state *state, uint64_t key, uint64_t exact, uint64_t root)
{
    state->key = key;
    state->exact = exact;
    state->at = root;
    return root;
}

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const uint8_t *node = node_;
    struct state *state = scratch;
    uint64_t key = word(node, NODE_KEY), next;
    if (key < state->key) {
        next = word(node, NODE_RIGHT);
    } else {
        state->bound = state->at;
        state->bound_key = key;
        state->value = word(node, NODE_VALUE);
        next = word(node, NODE_LEFT);
    }
    if (next != 0) {
        state->at = next;
        return memlift_next(walk, next);
    }
    if (state->bound == 0 || (state->exact && state->bound_key != state->key))
        return MEMLIFT_MISSING;
    return MEMLIFT_DONE;
}
