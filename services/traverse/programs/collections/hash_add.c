/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Adds `fresh` to the first eight bytes of a key's value, for keys that are u64. A sum that does not fit changes nothing: the answer is
 * MEMLIFT_DONE, with the value.
 *
 * Layout   left: how the value is read, see `ADD_*`
 * Order    far from the ends of the numbers the value is added to wherever it stands by then, so that writers do not disturb each other:
 *          2^30 other additions at the same time would be needed to reach an end. Near them it is swapped, and a client whose swap
 *          failed starts again
 */
#include "chain.h"

#define ADD_SIGNED 0
#define ADD_UNSIGNED 1
#define TAKE_UNSIGNED 2
#define FAR (1ull << 62)
#define SMALL (1ull << 32)

long step(const void *node_, void *scratch, struct memlift_walk *walk)
{
    const struct node *node = node_;
    struct state *state = scratch;
    uint64_t next = node->next;
    if (state->inside && !(next & REMOVED) && matches(node, state)) {
        note(node, state);
        if (node->value_bytes < 8)
            return MEMLIFT_MISSING;
        uint64_t value = node->words[0], addend = state->fresh, how = state->left;
        uint64_t sum = how == TAKE_UNSIGNED ? value - addend : value + addend;
        uint64_t fits, is_far;
        if (how == ADD_SIGNED) {
            fits = !(((value ^ sum) & (addend ^ sum)) >> 63);
            is_far = value + FAR < 2 * FAR && addend + SMALL < 2 * SMALL;
        } else {
            fits = how == TAKE_UNSIGNED ? addend <= value : sum >= value;
            is_far = value - FAR < 2 * FAR && addend < SMALL;
            /* From below nothing is near that is counted up, which is what most numbers are. */
            if (how == ADD_UNSIGNED)
                is_far = value < 2 * FAR && addend < SMALL;
        }
        if (!fits) {
            state->value = value;
            return MEMLIFT_DONE;
        }
        if (is_far)
            return memlift_fetch_add(walk, state->at + VALUE_AT, sum - value);
        return memlift_compare_swap(walk, state->at + VALUE_AT, value, sum);
    }
    if ((next & ~REMOVED) == 0)
        return MEMLIFT_MISSING;
    return go_on(state, walk, next & ~REMOVED);
}
