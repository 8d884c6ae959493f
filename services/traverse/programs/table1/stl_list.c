/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* std::list<uint64_t>: libstdc++'s _List_node, bits/stl_list.h; the list object is the end. */
#include <stdint.h>
struct list_node {
    uint64_t next; /* _M_next */
    uint64_t prev; /* _M_prev */
    uint64_t key;  /* _M_storage */
};
#define LIST_NODE struct list_node
#include "list.h"
