/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * boost::bimap<unordered_set_of<uint64_t>, unordered_set_of<uint64_t>>, find by the left key: a node of multi_index with two
 * hashed indices, boost/multi_index/detail/hash_index_node.hpp (1.56 on), seen from the left index's node_impl: −16 left key,
 * −8 right key, 0 prior_, 8 next_. The last node of a bucket has a bucket for `next_`, whose prior_ is another node: so a
 * place whose prior_ is not the node before is no node of this bucket.
 */
#define NODE_NEXT 8
#define NODE_KEY -16
#define NODE_VALUE -8
#include "hash.h"
MEMLIFT_INLINE int left(const uint8_t *node, const struct state *state)
{
    return state->previous != 0 && word(node, 0) != state->previous;
}
