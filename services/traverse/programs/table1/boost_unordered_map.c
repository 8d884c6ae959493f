/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * boost::unordered_map<uint64_t, uint64_t>: ptr_node of boost/unordered/detail/implementation.hpp (1.67 to 1.79): 0 next_,
 * 8 bucket_info_ (the bucket's number; its highest bit: not the first of equal keys), 16 the pair. One chain holds all buckets.
 */
#define NODE_NEXT 0
#define NODE_KEY 16
#define NODE_VALUE 24
#include "hash.h"
MEMLIFT_INLINE int left(const uint8_t *node, const struct state *state)
{
    return (word(node, 8) << 1) != (state->bucket << 1);
}
