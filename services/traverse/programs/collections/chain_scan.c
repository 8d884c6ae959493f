/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Emits every node of the chains whose heads lie from `at` to `last`, both included: 0 its address · 8 its key or hash · 16 value
 * bytes u32 · 20 key bytes u32 · 24 the 8 bytes behind them (of the value, or of a key of bytes).
 */
#include "chain.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t next = node->next, at = state->at, inside = state->inside;
    if (!inside)
        state->live = at;
    uint64_t then = next & ~REMOVED;
    if (then == 0) {
        /* `then` is the next head; one behind `last` ends the walk, and until then the last head is a place to stand. */
        then = state->live < state->last ? state->live + 8 : 0;
        state->inside = 0;
    } else {
        state->inside = 1;
    }
    if (state->run) /* the last node was emitted in the step before */
        return MEMLIFT_DONE;
    if (inside && !(next & REMOVED)) {
        state->out[0] = at;
        state->out[1] = node->key;
        state->out[2] = (uint64_t)node->key_bytes << 32 | node->value_bytes;
        state->out[3] = node->words[0];
        state->run = then == 0;
        state->at = then ? then : at;
        return memlift_emit(walk, offsetof(struct state, out), 32, state->at);
    }
    if (then == 0)
        return MEMLIFT_DONE;
    state->at = then;
    return memlift_next(walk, then);
}
