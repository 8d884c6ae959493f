// SPDX-License-Identifier: Apache-2.0 OR MIT
// The store on libpmemobj: its transactions, its allocator, its locks.
//
// Best    PMEM_IS_PMEM_FORCE=1 (no msync), pool prefaulted, no setjmp around a transaction · places are offsets of eight bytes
//         and not object ids of sixteen, so following one is an addition · only the words that change are snapshot · new objects
//         are neither zeroed nor snapshot · locks are taken beside the transaction, which keeps no list of them then

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <libpmemobj.h>

struct lock {
    PMEMmutex mutex;
    PMEMrwlock shared;
};

static PMEMobjpool *store_pool;
static char *store_base;
static uint64_t store_uuid;
static size_t store_bytes;
static struct lock *store_locks;

static inline void fail(const char *what) {
    fprintf(stderr, "libpmemobj: %s: %s\n", what, pmemobj_errormsg());
    exit(1);
}

static inline void *store_at(place at) {
    return store_base + at;
}

// Zeroed, at the start of a line.
static inline place store_make(size_t bytes) {
    PMEMoid object;
    if (pmemobj_zalloc(store_pool, &object, bytes + 64, 1)) fail("allocating");
    store_uuid = object.pool_uuid_lo;
    return (object.off + 63) & ~(place)63;
}

// A small object, as the transactions make them, not zeroed.
static inline place store_make_small(size_t bytes) {
    PMEMoid object;
    if (pmemobj_alloc(store_pool, &object, bytes, 1, NULL, NULL)) fail("allocating");
    return object.off;
}

static inline void store_create(const char *path, const char *how, size_t bytes) {
    if (strcmp(how, "libpmemobj")) fail("the store here is libpmemobj");
    int on = 1;
    if (pmemobj_ctl_set(NULL, "prefault.at_create", &on)) fail("asking for prefaulted pools");
    unlink(path);
    store_pool = pmemobj_create(path, "apps", bytes, 0600);
    if (!store_pool) fail("creating a pool");
    // The mapping outlives the name, and nothing is left behind however this process ends.
    unlink(path);
    store_base = (char *)store_pool;
    store_bytes = bytes;
    store_locks = store_at(store_make(sizeof(struct lock) * STORE_LOCKS));
}

static inline void store_settle(void) {
    pmemobj_persist(store_pool, store_base, store_bytes);
}

static inline void store_about(void) {
    const char *force = getenv("PMEM_IS_PMEM_FORCE");
    printf("libpmemobj 1.12.1 of Debian, PMEM_IS_PMEM_FORCE=%s, prefaulted pool of %zu MiB in /dev/shm, only changed words snapshot, "
           "PMEMmutex and PMEMrwlock",
           force ? force : "0", store_bytes >> 20);
}

static inline void store_lock(const uint16_t *locks, unsigned count) {
    for (unsigned at = 0; at < count; at++) pmemobj_mutex_lock(store_pool, &store_locks[locks[at]].mutex);
}

static inline void store_unlock(const uint16_t *locks, unsigned count) {
    while (count-- > 0) pmemobj_mutex_unlock(store_pool, &store_locks[locks[count]].mutex);
}

// Where there are readers beside writers.
static inline void store_lock_write(unsigned lock) {
    pmemobj_rwlock_wrlock(store_pool, &store_locks[lock].shared);
}

static inline void store_lock_read(unsigned lock) {
    pmemobj_rwlock_rdlock(store_pool, &store_locks[lock].shared);
}

static inline void store_unlock_one(unsigned lock) {
    pmemobj_rwlock_unlock(store_pool, &store_locks[lock].shared);
}

static inline void store_begin(void) {
    if (pmemobj_tx_begin(store_pool, NULL, TX_PARAM_NONE)) fail("beginning a transaction");
}

static inline void store_add(void *target, size_t bytes) {
    if (pmemobj_tx_add_range_direct(target, bytes)) fail("adding a range");
}

static inline place store_alloc(size_t bytes) {
    PMEMoid object = pmemobj_tx_alloc(bytes, 1);
    if (OID_IS_NULL(object)) fail("allocating");
    return object.off;
}

static inline void store_free(place at, size_t bytes) {
    (void)bytes;
    PMEMoid object = {store_uuid, at};
    if (pmemobj_tx_free(object)) fail("freeing");
}

static inline void store_commit(void) {
    pmemobj_tx_commit();
    if (pmemobj_tx_end()) fail("ending a transaction");
}

static inline void store_abort(void) {
    pmemobj_tx_abort(ECANCELED);
    if (pmemobj_tx_end() != ECANCELED) fail("aborting a transaction");
}
