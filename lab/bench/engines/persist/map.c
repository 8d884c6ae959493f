// SPDX-License-Identifier: Apache-2.0 OR MIT
// The maps that come with libpmemobj as its examples, behind four calls.
//
// Flow   open: a new pool, every page touched, an empty map ─▶ insert: ONE transaction that allocates 64 bytes, fills them and
//        puts them in; the map's own transaction nests in it ─▶ checksum: over all keys and values, in any order
// Best   each map keeps its defaults; the value is allocated unzeroed and without a snapshot, as a new object may be

#include <string.h>
#include <unistd.h>

#include "workload.h"

#include "map.h"
#include "map_btree.h"
#include "map_hashmap_tx.h"
#include "map_rbtree.h"
#include "map_skiplist.h"

struct root {
    TOID(struct map) map;
};

struct maps {
    PMEMobjpool *pool;
    struct map_ctx *context;
    TOID(struct map) map;
};

struct sum {
    uint64_t total;
    uint64_t count;
};

static const struct map_ops *operations(const char *kind) {
    if (!strcmp(kind, "btree")) return MAP_BTREE;
    if (!strcmp(kind, "rbtree")) return MAP_RBTREE;
    if (!strcmp(kind, "hashmap")) return MAP_HASHMAP_TX;
    if (!strcmp(kind, "skiplist")) return MAP_SKIPLIST;
    fprintf(stderr, "libpmemobj has no example map `%s`\n", kind);
    exit(2);
}

struct maps *maps_open(const char *kind, const char *path, size_t pool_bytes) {
    struct maps *maps = calloc(1, sizeof *maps);
    unlink(path);
    maps->pool = pmemobj_create(path, "map", pool_bytes, 0600);
    if (!maps->pool) fail("creating a pool");
    // The mapping outlives the name, and nothing is left behind however this process ends.
    unlink(path);
    PMEMoid root = pmemobj_root(maps->pool, sizeof(struct root));
    struct root *fields = pmemobj_direct(root);
    maps->context = map_ctx_init(operations(kind), maps->pool);
    if (!maps->context || map_create(maps->context, &fields->map, NULL)) fail("creating a map");
    maps->map = fields->map;
    return maps;
}

void maps_insert(struct maps *maps, uint64_t key) {
    // Without a jump buffer: an abort would end in the check below, not in a longjmp.
    if (pmemobj_tx_begin(maps->pool, NULL, TX_PARAM_NONE)) fail("beginning a transaction");
    PMEMoid value = pmemobj_tx_alloc(RECORD_BYTES, 1);
    if (OID_IS_NULL(value)) fail("allocating a value");
    memlift_reference_pattern(pmemobj_direct(value), RECORD_BYTES, key);
    if (map_insert(maps->context, maps->map, key, value)) fail("inserting");
    pmemobj_tx_commit();
    if (pmemobj_tx_end()) fail("ending a transaction");
}

static int add(uint64_t key, PMEMoid value, void *argument) {
    struct sum *sum = argument;
    sum->total += memlift_reference_checksum(pmemobj_direct(value), RECORD_BYTES) ^ key;
    sum->count++;
    return 0;
}

uint64_t maps_checksum(struct maps *maps, uint64_t *count) {
    struct sum sum = {0, 0};
    map_foreach(maps->context, maps->map, add, &sum);
    *count = sum.count;
    return sum.total;
}

void maps_close(struct maps *maps) {
    map_ctx_free(maps->context);
    pmemobj_close(maps->pool);
    free(maps);
}
