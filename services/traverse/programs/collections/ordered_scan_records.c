/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Emits the records (8 bytes of key, then the value) from `key` to `last`, both included, `limit` at most. */
#include "ordered.h"

MEMLIFT_INLINE uint64_t due(struct state *state)
{
    uint64_t next = state->record_next;
    if (next < state->records && next < KEYS) {
        state->record_next = next + 1;
        state->phase = RECORD;
        return state->record[next];
    }
    state->phase = NODE;
    return state->limit == 0 ? 0 : following(state);
}

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t phase = state->phase;
    if (phase == CELL)
        return enter(node_, state, walk);
    if (phase == OVER)
        return MEMLIFT_DONE;
    if (phase == RECORD) {
        take_record(node_, state);
        return emit_and_go_on(state, walk, (uint32_t)state->value_words * 8 + 8, due(state));
    }
    if (node->level != 0)
        return descend(node, state, walk);
    uint64_t place, end, left = state->limit, records = 0;
    span(node, state->key, state->last, &place, &end);
#pragma clang loop unroll(disable)
    for (; place < end && left != 0; place++) {
        MEMLIFT_OPAQUE(place);
        MEMLIFT_OPAQUE(records);
        state->record[records & 15] = node->places[place & 15];
        records += 1;
        left -= 1;
    }
    state->limit = end == node->count ? left : 0;
    state->records = records;
    state->record_next = 0;
    uint64_t next = due(state);
    if (next == 0)
        return MEMLIFT_DONE;
    return go_on(state, walk, next);
}
