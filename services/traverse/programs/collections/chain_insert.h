/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Links the node at `fresh` to the chain's end, unless the key is there already (then it is found: MEMLIFT_DONE). Removed nodes
 * at the end are unlinked in the same change. `fresh` has a next word of 0.
 */
#include "chain.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t next = node->next;
    if (!(next & REMOVED)) {
#ifndef ANY_KEY
        if (state->inside && matches(node, state)) {
            note(node, state);
            return MEMLIFT_DONE;
        }
#endif
        state->live = state->at;
        state->live_next = next;
        state->run = 0;
    } else {
        uint64_t run = state->run;
        if (run < RUN_MAX)
            state->removed[run] = state->at;
        state->run = run + 1;
    }
    if ((next & ~REMOVED) == 0) {
        /* More removed nodes than fit here would be lost to their owner: they are left for hash_unlink. */
        if (state->run > RUN_MAX)
            return MEMLIFT_RETRY;
        return memlift_compare_swap(walk, state->live, state->live_next, state->fresh);
    }
    return go_on(state, walk, next & ~REMOVED);
}
