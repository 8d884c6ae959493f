/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sum, count, least and greatest of the values (signed; the sum wraps) whose keys lie from `key` to `last`, both included: at 96
 * of the scratchpad.
 */
#include "ordered.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    if (state->phase == CELL)
        return enter(node_, state, walk);
    if (node->level != 0)
        return descend(node, state, walk);
    uint64_t place, end, next = 0, sum = state->sum;
    span(node, state->key, state->last, &place, &end);
    int64_t least = INT64_MAX, most = INT64_MIN;
    if (state->count != 0) {
        least = (int64_t)state->min;
        most = (int64_t)state->max;
    }
    if (place < end) {
        state->count += end - place;
#pragma clang loop unroll(disable)
        for (; place < end; place++) {
            MEMLIFT_OPAQUE(place);
            int64_t value = (int64_t)node->places[place & 15];
            sum += (uint64_t)value;
            if (value < least)
                least = value;
            if (value > most)
                most = value;
        }
        state->sum = sum;
        state->min = (uint64_t)least;
        state->max = (uint64_t)most;
    }
    if (end == node->count)
        next = following(state);
    if (next == 0)
        return MEMLIFT_DONE;
    return go_on(state, walk, next);
}
