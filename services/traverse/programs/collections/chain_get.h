/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Finds the node of a key and emits its value, 240 bytes a step. */
#include "chain.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    if (state->left == 0) {
        uint64_t next = node->next;
        if (state->inside && !(next & REMOVED) && matches(node, state)) {
            note(node, state);
            if (node->value_bytes == 0)
                return MEMLIFT_DONE;
            state->left = (uint64_t)node->value_bytes + 1;
            state->live = state->at;
#ifdef KEY_OF_BYTES
            state->at += VALUE_AT + ((state->key_bytes + 7u) & ~7u);
#else
            state->at += VALUE_AT;
#endif
            return memlift_next(walk, state->at);
        }
        if ((next & ~REMOVED) == 0)
            return MEMLIFT_MISSING;
        return go_on(state, walk, next & ~REMOVED);
    }
    uint64_t left = state->left - 1, piece = left < 240 ? left : 240;
    if (left == 0)
        return MEMLIFT_DONE;
    const uint64_t *from = node_;
#pragma clang loop unroll(full)
    for (int i = 0; i < 30; i++)
        state->out[i] = from[i];
    state->left = left - piece + 1;
    /* What is left after the last piece is a step that says so: at a place that is surely there. */
    state->at = left == piece ? state->live : state->at + piece;
    return memlift_emit(walk, offsetof(struct state, out), piece, state->at);
}
