/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Sum, count, least and greatest of a list's keys, as signed numbers; the sum wraps. */
#include "chain.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t next = node->next;
    if (state->inside && !(next & REMOVED)) {
        int64_t key = (int64_t)node->key;
        if (state->count == 0 || key < (int64_t)state->min)
            state->min = (uint64_t)key;
        if (state->count == 0 || key > (int64_t)state->max)
            state->max = (uint64_t)key;
        state->sum += (uint64_t)key;
        state->count += 1;
    }
    if ((next & ~REMOVED) == 0)
        return MEMLIFT_DONE;
    return go_on(state, walk, next & ~REMOVED);
}
