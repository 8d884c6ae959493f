/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A chain of nodes that many clients change at once: what hash maps and lists have in common.
 *
 * Layout   place: 0 next (bit 0: the node at this place is removed). A bucket, or the head of a list, is a place and no more;
 *          node: 0 next · 8 key u64, or the 64-bit hash of a key of bytes · 16 value bytes u32 · 20 key bytes u32 · 24 key, if it
 *          is of bytes, filled up with zeros to a multiple of 8 · then the value, filled up in the same way
 *          scratchpad: `struct state`
 * Order    Harris's list (DISC 2001): a node is removed by setting bit 0 of its `next`, and unlinked afterwards by whoever
 *          comes by; a node whose bit 0 is set never changes again. A new node goes to the end, where `next` is 0, so it is
 *          written once. A value is replaced by a node with the same key: the old node's `next` becomes the new node's
 *          address with bit 0 set, in one compare-and-swap
 * Not here when a node's memory is used again: after a time that no walk outlives, see src/structures/retire.rs
 */
#include "../memlift_walk.h"

#define REMOVED 1ull
#define VALUE_AT 24
#define RUN_MAX 8
#define KEY_WORDS 16

struct node {
    uint64_t next;
    uint64_t key;
    uint32_t value_bytes;
    uint32_t key_bytes;
    uint64_t words[27];
};

_Static_assert(sizeof(struct node) == 240, "one window");

struct state {
    uint64_t key;         /*  0 key, or its hash */
    uint64_t at;          /*  8 the place that is being looked at */
    uint64_t inside;      /* 16 0: that place is the head */
    uint64_t fresh;       /* 24 the node to link, or the addend */
    uint64_t value;       /* 32 found: the value's first eight bytes */
    uint64_t next;        /* 40 found: its next word */
    uint32_t value_bytes; /* 48 found */
    uint32_t key_bytes;   /* 52 wanted: bytes of the key, 0 if it is a u64 */
    uint64_t live;        /* 56 the last place that is not removed */
    uint64_t live_next;   /* 64 its next word */
    uint64_t run;         /* 72 removed nodes behind it: how many */
    uint64_t removed[RUN_MAX]; /* 80 and which */
    uint64_t left;        /* 144 bytes of the value that are still to be emitted, plus one; 0: not found yet */
    uint64_t sum, count, min, max; /* 152 what list_sum answers with */
    uint64_t last;        /* 184 last place of a scan over several heads */
    uint64_t words[KEY_WORDS]; /* 192 the key, filled up with zeros */
    uint64_t out[30];     /* 320 what is emitted */
};

_Static_assert(offsetof(struct state, words) == 192 && offsetof(struct state, out) == 320, "as src/structures/chain.rs has it");

/* Whether the node has the key that is sought. */
MEMLIFT_INLINE int matches(const struct node *node, const struct state *state)
{
    if (node->key != state->key)
        return 0;
#ifdef KEY_OF_BYTES
    uint32_t bytes = state->key_bytes;
    if (node->key_bytes != bytes)
        return 0;
#define WORD(i)                                                                \
    if (bytes <= (i) * 8)                                                      \
        return 1;                                                              \
    if (node->words[i] != state->words[i])                                     \
        return 0;
    WORD(0) WORD(1) WORD(2) WORD(3) WORD(4) WORD(5) WORD(6) WORD(7)
    WORD(8) WORD(9) WORD(10) WORD(11) WORD(12) WORD(13) WORD(14) WORD(15)
#undef WORD
#endif
    return 1;
}

/* Goes on at a place. */
MEMLIFT_INLINE long go_on(struct state *state, struct memlift_walk *walk, uint64_t place)
{
    state->at = place;
    state->inside = 1;
    return memlift_next(walk, place);
}

/* Notes what was found. */
MEMLIFT_INLINE void note(const struct node *node, struct state *state)
{
    state->next = node->next;
    state->value_bytes = node->value_bytes;
}
