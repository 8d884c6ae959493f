/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Kernel 1 of 4, std::find on a list: STL list and forward_list.
 *
 * Layout   scratchpad 0 key · 8 end (the address that ends the list: 0, or that of the list object) · 16 value found here: the
 *          address of the node · 24 address of the node that is being looked at, set by `init` to the first one
 * Flow     the includer defines LIST_NODE with `next` and `key`
 */
#include "../memlift_walk.h"

struct state {
    uint64_t key;
    uint64_t end;
    uint64_t found;
    uint64_t at;
};

/* At the client: `first` is the first node, and is not `past` (an empty list is not walked). */
MEMLIFT_INLINE uint64_t init(struct state *state, uint64_t key, uint64_t first, uint64_t past)
{
    state->key = key;
    state->end = past;
    state->at = first;
    return first;
}

MEMLIFT_INLINE long end(const LIST_NODE *node, struct state *state)
{
    if (node->key == state->key) {
        state->found = state->at;
        return MEMLIFT_DONE;
    }
    return node->next == state->end ? MEMLIFT_MISSING : MEMLIFT_NEXT;
}

MEMLIFT_INLINE uint64_t next(const LIST_NODE *node, struct state *state)
{
    state->at = node->next;
    return node->next;
}

MEMLIFT_ITERATOR(LIST_NODE, struct state)
