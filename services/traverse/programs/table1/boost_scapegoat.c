/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * boost::intrusive::sg_set of a struct that derives from its hook and has a key and a value:
 * boost/intrusive/detail/tree_node.hpp: 0 parent_, 8 left_, 16 right_; 24 key, 32 value.
 */
#define NODE_LEFT 8
#define NODE_RIGHT 16
#define NODE_KEY 24
#define NODE_VALUE 32
#include "tree.h"
