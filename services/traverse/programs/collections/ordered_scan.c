/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Emits the pairs of key and value from `key` to `last`, both included, `limit` at most. */
#include "ordered.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    if (state->phase == CELL)
        return enter(node_, state, walk);
    if (state->phase == OVER)
        return MEMLIFT_DONE;
    if (node->level != 0)
        return descend(node, state, walk);
    uint64_t place, end, next = 0, left = state->limit, emitted = 0;
    span(node, state->key, state->last, &place, &end);
#pragma clang loop unroll(disable)
    for (; place < end && left != 0; place++) {
        MEMLIFT_OPAQUE(place);
        MEMLIFT_OPAQUE(emitted);
        state->out[emitted & 30] = key_at(node, place);
        state->out[(emitted & 30) + 1] = node->places[place & 15];
        emitted += 2;
        left -= 1;
    }
    if (end == node->count && left != 0)
        next = following(state);
    state->limit = left;
    if (emitted != 0)
        return emit_and_go_on(state, walk, (uint32_t)emitted * 8, next);
    if (next == 0)
        return MEMLIFT_DONE;
    return go_on(state, walk, next);
}
