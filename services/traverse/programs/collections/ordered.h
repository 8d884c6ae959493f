/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A B+tree whose nodes never change: a writer makes the nodes from a leaf up to the root anew and then swaps the root's address.
 *
 * Layout   cell: the root's address, 0 if there is none; then the writers' queue, see src/structures/ordered/turns.rs
 *          node (256 bytes): 0 count u16 · 2 level u8, 0 for leaves · 8 fifteen keys, those from `count` on u64::MAX ·
 *          128 sixteen places: of a leaf `count` values, or addresses of records; of an inner node `count + 1` children, where
 *          keys[i] is not less than any key under child i and less than every key under child i + 1
 *          record: 0 key · 8 value, filled up to a multiple of 8, 240 bytes at most
 *          scratchpad: `struct state`
 * Order    so a walk sees the tree as it was when it read the cell, however long it takes
 */
#include "../memlift_walk.h"

#define KEYS 15
#define NONE (~0ull)

struct node {
    uint16_t count;
    uint8_t level;
    uint8_t unused[5];
    uint64_t keys[KEYS];
    uint64_t places[KEYS + 1];
};

_Static_assert(sizeof(struct node) == 256, "one window");

enum { CELL = 0, NODE = 1, RECORD = 2, OVER = 3 };

struct state {
    uint64_t key;           /*   0 wanted: the first key */
    uint64_t last;          /*   8 wanted: the last key */
    uint64_t limit;         /*  16 how many are wanted still */
    uint64_t root;          /*  24 */
    uint64_t phase;         /*  32 what is being looked at */
    uint64_t value_words;   /*  40 words of a record's value, 0: values are in the leaves */
    uint64_t value;         /*  48 found: the value, or the record's address */
    uint64_t fence;         /*  56 the last key that can be under the node */
    uint64_t child;         /*  64 the next leaf: its number among `children` */
    uint64_t children_last; /*  72 number of the last one */
    uint64_t records;       /*  80 how many of `record` there are */
    uint64_t record_next;   /*  88 which one is due after this one */
    uint64_t sum, count, min, max; /* 96 what ordered_aggregate answers with */
    uint64_t children[KEYS + 1];   /* 128 the leaves under one node */
    uint64_t record[KEYS + 1];     /* 256 the records of one leaf */
    uint64_t at;            /* 384 the node that is being looked at */
    uint64_t out[32];       /* 392 what is emitted, or the value that was found */
    uint64_t turn;          /* 648 the lowest node seen on the way down that has a child behind the fence, 0: none */
};

_Static_assert(offsetof(struct state, sum) == 96 && offsetof(struct state, children) == 128 &&
                   offsetof(struct state, at) == 384 && sizeof(struct state) == 656,
               "as src/structures/ordered has it");

/* The key at a place: a place that is no leaf's reads something else of the node. */
MEMLIFT_INLINE uint64_t key_at(const struct node *node, uint64_t place)
{
    return ((const uint64_t *)node)[1 + (place & 15)];
}

/* The number of keys that are less than `key`. */
#define SEARCH(half)                           \
    if (node->keys[place + half - 1] < key)    \
        place += half;                         \
    MEMLIFT_OPAQUE(place);
MEMLIFT_INLINE uint64_t lower_bound(const struct node *node, uint64_t key)
{
    uint64_t place = 0;
    SEARCH(8)
    SEARCH(4)
    SEARCH(2)
    SEARCH(1)
    return place;
}

/* The places of a leaf whose keys lie from `first` to `last`: from *begin to before *end, which is before its count if the scan ends. */
MEMLIFT_INLINE void span(const struct node *node, uint64_t first, uint64_t last, uint64_t *begin, uint64_t *end)
{
    uint64_t stop = lower_bound(node, last);
    if (stop < KEYS && node->keys[stop] == last)
        stop += 1;
    if (stop > node->count)
        stop = node->count;
    *begin = lower_bound(node, first);
    *end = stop;
}

/* Takes a record, eight words at a time, to `out`. */
MEMLIFT_INLINE void take_record(const uint64_t *words, struct state *state)
{
    uint64_t value_words = state->value_words;
#define WORDS(from, to)                                                        \
    if (value_words >= from) {                                                 \
        _Pragma("clang loop unroll(full)") for (int i = from; i < to; i++)     \
            state->out[i] = words[i];                                          \
    }
    WORDS(0, 8)
    WORDS(8, 16)
    WORDS(16, 24)
    WORDS(24, 31)
#undef WORDS
}

/* Goes on at a node. */
MEMLIFT_INLINE long go_on(struct state *state, struct memlift_walk *walk, uint64_t place)
{
    state->at = place;
    return memlift_next(walk, place);
}

/* From the cell to the root. */
MEMLIFT_INLINE long enter(const void *cell, struct state *state, struct memlift_walk *walk)
{
    uint64_t root = *(const uint64_t *)cell;
    if (root == 0)
        return MEMLIFT_MISSING;
    state->root = root;
    state->phase = NODE;
    state->fence = NONE;
    state->child = 1;
    state->children_last = 0;
    return go_on(state, walk, root);
}

/* From an inner node to the child that a scan begins at; of the lowest inner node all children are noted. */
MEMLIFT_INLINE long descend(const struct node *node, struct state *state, struct memlift_walk *walk)
{
    uint64_t place = lower_bound(node, state->key);
    if (node->level == 1) {
#pragma clang loop unroll(full)
        for (int i = 0; i < KEYS + 1; i++)
            state->children[i] = node->places[i];
        state->child = place + 1;
        state->children_last = node->count;
    } else if (place < node->count) {
        state->fence = node->keys[place];
        state->turn = state->at;
    } else if (state->at == state->turn && state->at != state->root) {
        /* A turn's last child: only the nodes above it know what comes behind that. */
        state->turn = 0;
        return go_on(state, walk, state->root);
    }
    return go_on(state, walk, node->places[place]);
}

/* Where a scan goes on after a leaf; 0: it is over. */
MEMLIFT_INLINE uint64_t following(struct state *state)
{
    uint64_t child = state->child, fence = state->fence;
    if (child <= state->children_last && child < KEYS + 1) {
        state->child = child + 1;
        return state->children[child];
    }
    if (fence >= state->last)
        return 0;
    /* The leaves under this node are done: down again from where the way to the next ones parts, for the first key behind them. */
    state->key = fence + 1;
    state->fence = NONE;
    state->child = 1;
    state->children_last = 0;
    return state->turn;
}

/* Emits, then goes on at a node, or (0) ends one step later. */
MEMLIFT_INLINE long emit_and_go_on(struct state *state, struct memlift_walk *walk, uint32_t bytes, uint64_t place)
{
    if (place == 0) {
        state->phase = OVER;
        place = state->root;
    }
    state->at = place;
    return memlift_emit(walk, offsetof(struct state, out), bytes, place);
}
