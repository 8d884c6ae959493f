/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * boost::intrusive::avl_set of a struct that derives from its hook and has a key and a value:
 * boost/intrusive/detail/avltree_node.hpp: 0 parent_, 8 left_, 16 right_, 24 balance_; 32 key, 40 value.
 */
#define NODE_LEFT 8
#define NODE_RIGHT 16
#define NODE_KEY 32
#define NODE_VALUE 40
#include "tree.h"
