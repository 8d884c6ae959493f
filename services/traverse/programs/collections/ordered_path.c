/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Emits the nodes from the root to the leaf in which a key is or would be, each behind its address: what a writer makes anew. */
#include "ordered.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    if (state->phase == CELL)
        return enter(node_, state, walk);
    if (state->phase == OVER)
        return MEMLIFT_DONE;
    const uint64_t *words = node_;
    struct emitted { uint64_t at, words[32]; } *out = scratch + sizeof(struct state);
    out->at = state->at;
#pragma clang loop unroll(full)
    for (int i = 0; i < 32; i++)
        out->words[i] = words[i];
    uint64_t next = state->root;
    if (node->level == 0)
        state->phase = OVER;
    else
        next = node->places[lower_bound(node, state->key)];
    state->at = next;
    return memlift_emit(walk, sizeof(struct state), sizeof *out, next);
}
