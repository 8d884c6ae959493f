/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* std::forward_list<uint64_t>: libstdc++'s _Fwd_list_node, bits/forward_list.h; 0 is the end. */
#include <stdint.h>
struct list_node {
    uint64_t next; /* _M_next */
    uint64_t key;  /* _M_storage */
};
#define LIST_NODE struct list_node
#include "list.h"
