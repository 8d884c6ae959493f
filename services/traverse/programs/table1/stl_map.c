/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * std::map<uint64_t, uint64_t>: libstdc++'s _Rb_tree_node, bits/stl_tree.h: 0 _M_color, 8 _M_parent, 16 _M_left, 24 _M_right,
 * 32 the pair.
 */
#define NODE_LEFT 16
#define NODE_RIGHT 24
#define NODE_KEY 32
#define NODE_VALUE 40
#include "tree.h"
