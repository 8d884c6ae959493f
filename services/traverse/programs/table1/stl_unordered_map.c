/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * std::unordered_map<uint64_t, uint64_t>, PULSE's Listing 3: libstdc++'s _Hash_node without a cached hash,
 * bits/hashtable_policy.h: 0 _M_nxt, 8 the pair. One chain holds all buckets; std::hash of an integer is the integer.
 */
#define NODE_NEXT 0
#define NODE_KEY 8
#define NODE_VALUE 16
#include "hash.h"
MEMLIFT_INLINE int left(const uint8_t *node, const struct state *state)
{
    return word(node, NODE_KEY) % state->buckets != state->bucket;
}
