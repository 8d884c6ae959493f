/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Finds the node of a key: where it is, its next word, and for keys of 8 bytes the first 8 bytes of its value. */
#include "chain.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t next = node->next;
    if (state->inside && !(next & REMOVED) && matches(node, state)) {
        note(node, state);
#ifndef KEY_OF_BYTES
        state->value = node->words[0];
#endif
        return MEMLIFT_DONE;
    }
    if ((next & ~REMOVED) == 0)
        return MEMLIFT_MISSING;
    return go_on(state, walk, next & ~REMOVED);
}
