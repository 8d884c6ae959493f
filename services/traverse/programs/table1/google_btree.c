/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Kernel 4 of 4, internal_locate and lower_bound in a B-tree: Google's btree::btree_map<uint64_t, uint64_t> with its default
 * nodes of 256 bytes (cpp-btree 1.0, btree.h: base_fields, leaf_fields, internal_fields).
 *
 * Layout   node: 0 leaf u8 · 1 position u8 · 2 max_count u8 · 3 count u8 · 8 parent · 16 fifteen pairs; inner nodes also have
 *          256 sixteen children, which no window of 256 bytes can hold together with the pairs: so every level takes two
 *          steps, one at the node and one at the child's place
 *          scratchpad 0 key · 8 exact (1: find, 0: lower_bound) · 16 value · 24 key of the bound · 32 its node, 0 if there is
 *          none · 40 the node that is being looked at · 48 1: at a child's place
 */
#include "../memlift_walk.h"

struct pair {
    uint64_t key;
    uint64_t value;
};

struct node {
    uint8_t leaf, position, max_count, count;
    uint32_t unused;
    uint64_t parent;
    struct pair pairs[15];
};

struct state {
    uint64_t key;
    uint64_t exact;
    uint64_t value;
    uint64_t bound_key;
    uint64_t bound;
    uint64_t at;
    uint64_t child;
};

/* At the client: an empty tree is not walked. */
MEMLIFT_INLINE uint64_t init(struct state *state, uint64_t key, uint64_t exact, uint64_t root)
{
    state->key = key;
    state->exact = exact;
    state->at = root;
    return root;
}

/* Half of what is left of a binary search: `place` is the number of keys below the one sought. */
#define SEARCH(half)                                                               \
    if (place + half <= count && node->pairs[place + half - 1].key < key)          \
        place += half;                                                             \
    MEMLIFT_OPAQUE(place)

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t at = state->at, key = state->key;
    if (state->child) {
        state->child = 0;
        state->at = *(const uint64_t *)node_;
        return memlift_next(walk, state->at);
    }
    uint64_t count = node->count, place = 0;
    SEARCH(8);
    SEARCH(4);
    SEARCH(2);
    SEARCH(1);
    if (place < 15 && place < count) {
        state->bound = at;
        state->bound_key = node->pairs[place].key;
        state->value = node->pairs[place].value;
    }
    if (!node->leaf) {
        state->child = 1;
        return memlift_next(walk, at + 256 + place * 8);
    }
    if (state->bound == 0 || (state->exact && state->bound_key != key))
        return MEMLIFT_MISSING;
    return MEMLIFT_DONE;
}
