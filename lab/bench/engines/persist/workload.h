// SPDX-License-Identifier: Apache-2.0 OR MIT
// What the parts of the libpmemobj rival share beside draw.h: records and the maps.
#ifndef MEMLIFT_WORKLOAD_H
#define MEMLIFT_WORKLOAD_H

#include "draw.h"

#include <libpmemobj.h>

#define RECORD_BYTES 64

static inline void fail(const char *what) {
    fprintf(stderr, "libpmemobj: %s: %s\n", what, pmemobj_errormsg());
    exit(1);
}

// A map of the examples, by name.
struct maps;
struct maps *maps_open(const char *kind, const char *path, size_t pool_bytes);
void maps_insert(struct maps *maps, uint64_t key);
uint64_t maps_checksum(struct maps *maps, uint64_t *count);
void maps_close(struct maps *maps);

#endif
