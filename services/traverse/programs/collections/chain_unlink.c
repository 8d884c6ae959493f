/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Takes the first run of removed nodes, eight at most, out of a chain; their addresses are in the scratchpad. Missing: no node
 * of the chain is removed.
 */
#include "chain.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t next = node->next, run = state->run;
    if (!(next & REMOVED)) {
        if (run != 0)
            return memlift_compare_swap(walk, state->live, state->live_next, state->at);
        state->live = state->at;
        state->live_next = next;
    } else {
        if (run < RUN_MAX)
            state->removed[run] = state->at;
        run += 1;
        state->run = run;
        if (run >= RUN_MAX || (next & ~REMOVED) == 0)
            return memlift_compare_swap(walk, state->live, state->live_next, next & ~REMOVED);
    }
    if ((next & ~REMOVED) == 0)
        return MEMLIFT_MISSING;
    return go_on(state, walk, next & ~REMOVED);
}
