/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Finds a key; the value, or the address of its record, is at 48 of the scratchpad. */
#include "ordered.h"

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    if (state->phase == CELL)
        return enter(node_, state, walk);
    uint64_t place = lower_bound(node, state->key);
    if (node->level != 0)
        return go_on(state, walk, node->places[place]);
    if (place >= KEYS || place >= node->count || node->keys[place] != state->key)
        return MEMLIFT_MISSING;
    state->value = node->places[place];
    return MEMLIFT_DONE;
}
