/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Adds `fresh` to the first eight bytes of a key's value, for keys that are u64. */
#include "chain.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t next = node->next;
    if (state->inside && !(next & REMOVED) && matches(node, state)) {
        note(node, state);
        if (node->value_bytes < 8)
            return MEMLIFT_MISSING;
        return memlift_fetch_add(walk, state->at + VALUE_AT, state->fresh);
    }
    if ((next & ~REMOVED) == 0)
        return MEMLIFT_MISSING;
    return go_on(state, walk, next & ~REMOVED);
}
