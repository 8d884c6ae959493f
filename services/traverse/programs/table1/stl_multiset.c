/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * std::multiset<uint64_t>: libstdc++'s _Rb_tree_node, bits/stl_tree.h: 0 _M_color, 8 _M_parent, 16 _M_left, 24 _M_right,
 * 32 the key. The first of equal keys is found.
 */
#define NODE_LEFT 16
#define NODE_RIGHT 24
#define NODE_KEY 32
#define NODE_VALUE 32
#include "tree.h"
