/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Removes the node of a key: sets bit 0 of its next word. Unlinking comes after: chain_unlink. */
#include "chain.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t next = node->next;
    if (state->inside && !(next & REMOVED) && matches(node, state)) {
        note(node, state);
        return memlift_compare_swap(walk, state->at, next, next | REMOVED);
    }
    if ((next & ~REMOVED) == 0)
        return MEMLIFT_MISSING;
    return go_on(state, walk, next & ~REMOVED);
}
