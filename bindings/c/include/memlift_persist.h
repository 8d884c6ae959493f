/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * memlift persist: objects in a file that survive a crash, one fence per transaction.
 *
 * Flow    memlift_pool_open or _create ; memlift_pool_type: what objects are ; memlift_tx_begin, then _alloc, _add_range
 *         (gives the address to store to), _free, _set_root, then memlift_tx_commit: all of it is durable, or none ;
 *         memlift_read_begin, memlift_read_get: look without copying
 * Order   as in memlift.h: 0 is good, below 0 nothing was done, memlift_last_error() says why.
 *         A commit of MEMLIFT_SYNC or _GROUP that gave MEMLIFT_OK is durable (memlift_pool_guarantee: against what).
 *         A transaction that is not committed when its process dies never happened.
 * Owner   an object is named by its place in the pool (memlift_object), which may be kept in other objects; 0 is none.
 *         Addresses hold until the transaction or the read lock that gave them ends, and no longer.
 * Threads a pool may be used from any thread. A transaction or read lock belongs to the thread that began it, and a thread
 *         has one of them per pool at a time (else MEMLIFT_BAD_ORDER). One transaction runs at a time; others wait.
 * Fork    a child must not touch the parent's pools; calls give MEMLIFT_BAD_ARGUMENT there and leave the file alone.
 *
 * The last section has the primitives of NearPM (Table 2) by name.
 */
#ifndef MEMLIFT_PERSIST_H
#define MEMLIFT_PERSIST_H

#include <memlift.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pools ---- */

typedef struct memlift_pool memlift_pool;

enum memlift_mechanism {
    MEMLIFT_REDO = 0,
    MEMLIFT_UNDO = 1,
    MEMLIFT_CHECKPOINT = 2,
    MEMLIFT_SHADOW = 3
};

enum memlift_domain {
    MEMLIFT_DOMAIN_AUTO = 0,  /* found out */
    MEMLIFT_DOMAIN_LINES = 1, /* write-back of cache lines and a fence; on an ordinary file: survives the process only */
    MEMLIFT_DOMAIN_PAGES = 2  /* fdatasync */
};

/* All zero is the default. Sizes, lanes and mechanism count when a pool is created. */
typedef struct memlift_pool_options {
    uint64_t heap_bytes; /* at first; 0: 256 KiB */
    uint64_t max_bytes;  /* up to which it grows; 0: 64 GiB */
    uint64_t lane_bytes; /* of the log; with undo, checkpoint and shadow a transaction is limited by it. 0: 1 MiB */
    uint32_t mechanism;  /* enum memlift_mechanism */
    uint32_t domain;     /* enum memlift_domain */
    uint32_t read_only;  /* not 0: memlift_pool_open does not write */
    uint32_t prefault;   /* not 0: touch all memory when it is opened */
    /* Memory that changed pages may take before they go back to the file. 0: a quarter of what the process may have. */
    uint64_t mirror_bytes;
    /* Other processes may open the pool with read_only meanwhile, each as of that moment: so much memory keeps pages for them as they were
     * (MEMLIFT_SNAPSHOT_GONE for whom it is too little). 0: none may. */
    uint64_t readers_bytes;
    /* Opening waits so long for another process that has the pool open, until it closes it or ends. 0: MEMLIFT_POOL_IN_USE at once. */
    double wait_s;
    /* Place of a copy that is kept up to date in the background: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH (keys and settings
     * come from the environment) or a folder. Redo and checkpoint. NULL: none. Opening fails with MEMLIFT_REPLICA_FAILED where it cannot be
     * reached, and for a library that was built without replicas. */
    const char *replicate;
    /* So long a MEMLIFT_REPLICATED commit and memlift_pool_close wait for the copy at most. 0: 30 s. */
    double replica_wait_s;
} memlift_pool_options;

/* options may be NULL. A crash meanwhile leaves a whole pool or none. MEMLIFT_FILE_EXISTS, MEMLIFT_FILE_FAILED. */
int memlift_pool_create(const char *path, const memlift_pool_options *options, memlift_pool **pool);
/* Recovers it first. MEMLIFT_POOL_IN_USE, _NOT_A_POOL, _POOL_DAMAGED, _FILE_FAILED. */
int memlift_pool_open(const char *path, const memlift_pool_options *options, memlift_pool **pool);
/* MEMLIFT_BAD_ORDER while a transaction or read lock is open; the pool stays open then. After anything else it is gone. NULL
 * is allowed. MEMLIFT_NOT_REPLICATED: everything is in the file, and the replica lacks something of it. */
int memlift_pool_close(memlift_pool *pool);
/* Makes everything durable that was committed, MEMLIFT_BUFFERED transactions included. */
int memlift_pool_sync(memlift_pool *pool);
/* Writes a copy to the new file target while other threads go on using the pool: everything that was committed before, read back
 * and compared; a pool like any other. bytes_per_second: how fast at most, 0: as fast as the disk. Not within a transaction or read lock
 * (MEMLIFT_BAD_ORDER). MEMLIFT_FILE_EXISTS, _POOL_DAMAGED, _FILE_FAILED: then there is no copy. */
int memlift_pool_backup(memlift_pool *pool, const char *target, uint64_t bytes_per_second);

typedef struct memlift_replica {
    uint64_t sequence;   /* transactions up to this one are in the replica */
    uint64_t committed;  /* the last one that was committed */
    uint64_t sent_bytes; /* since the pool was opened */
    double lag_s;        /* everything older than this is in the replica; below 0: nothing was sent yet */
    uint32_t ended;      /* not 0: nothing will be sent any more: another process has the replica, or the disk failed */
    uint32_t reserved;
} memlift_replica;

/* How far the replica of a pool opened with replicate is; the reason that nothing was sent lately goes to trouble, an empty text where there
 * is none, cut off at trouble_bytes with a zero at the end; either may be NULL. MEMLIFT_BAD_ARGUMENT for a pool without one. */
int memlift_pool_replica(memlift_pool *pool, memlift_replica *replica, char *trouble, size_t trouble_bytes);
/* Waits until the replica has everything that was committed before, timeout_s at most: MEMLIFT_NOT_REPLICATED. */
int memlift_pool_wait_replica(memlift_pool *pool, double timeout_s);
/* Makes the new file target of the replica at url: the pool as it was at time_us, in microseconds since 1970; 0: as late as the replica has
 * it. Everything that is read is compared with its checksum. MEMLIFT_FILE_EXISTS, _REPLICA_FAILED, _FILE_FAILED: then there is no file. */
int memlift_replica_restore(const char *url, const char *target, uint64_t time_us);

/* A pool opened with read_only that another process writes: sees what was committed there by now. Not within a read lock
 * (MEMLIFT_BAD_ORDER). MEMLIFT_SNAPSHOT_GONE when nobody writes it any more; what was read before can still be read. */
int memlift_pool_refresh(memlift_pool *pool);

typedef struct memlift_pool_guarantee_t {
    uint32_t survives_power_failure; /* 0: the death of the process only */
    uint32_t domain;                 /* MEMLIFT_DOMAIN_LINES or _PAGES */
} memlift_pool_guarantee_t;

/* What committed transactions survive on this file. Writes it in words to text, too, cut off at text_bytes with a zero at the
 * end; either may be NULL. */
int memlift_pool_guarantee(memlift_pool *pool, memlift_pool_guarantee_t *guarantee, char *text, size_t text_bytes);

/* ---- types ---- */

typedef uint64_t memlift_object;

typedef struct memlift_field {
    const char *name;
    uint64_t offset;
    uint64_t bytes;
    /* For tools, which print the field and follow it: "uint32_t", "i64", "double", "bool", "char" (text), "account *" for the memlift_object
     * of an object of that type, "memlift_object" for one of any, or the name of another type with a size. A field of several times that
     * size is an array; in a type without a size, the last field goes on to the object's end. NULL: bytes. No part of the id. */
    const char *type;
} memlift_field;

typedef struct memlift_type {
    uint64_t id;    /* of name, size and fields: the same in every program that describes it so */
    uint64_t bytes; /* 0: each object has its own length */
} memlift_type;

/* Describes a type and writes the description to the pool, where `memlift pool dump` prints objects by it and `memlift pool check` follows
 * them; a description with types replaces one without. fields may be NULL. */
int memlift_pool_type(memlift_pool *pool, const char *name, uint64_t bytes, const memlift_field *fields, size_t field_count,
                      memlift_type *type);

/* ---- transactions ---- */

typedef struct memlift_tx memlift_tx;

enum memlift_durability {
    MEMLIFT_SYNC = 0,    /* durable when commit returns */
    MEMLIFT_GROUP = 1,   /* the same, one fence with others that commit at the same time */
    MEMLIFT_BUFFERED = 2, /* durable after the next sync; a crash loses the last ones, never one in between */
    MEMLIFT_REPLICATED = 3 /* as MEMLIFT_GROUP, and the replica has it, too (memlift_pool_options.replicate) */
};

/* Waits for the transactions and readers of other threads. */
int memlift_tx_begin(memlift_pool *pool, int durability, memlift_tx **tx);
/* Ends it and frees tx, whatever it gives. Not MEMLIFT_OK: nothing of it happened. MEMLIFT_BAD_ORDER: an operation in it had
 * failed, or this is another thread (then it goes on). Only after MEMLIFT_NOT_REPLICATED it did happen: it is durable in the file, and the
 * replica gets it when that goes on. */
int memlift_tx_commit(memlift_tx *tx);
/* Ends it as if it had not been, and frees tx. NULL is allowed. */
int memlift_tx_abort(memlift_tx *tx);

/* A new object of zeros. bytes: for types without a size; else 0 or that size. data (may be NULL) becomes its address, for
 * storing to it. From 16 KiB on it does not go through the log. */
int memlift_tx_alloc(memlift_tx *tx, memlift_type type, uint64_t bytes, memlift_object *object, void **data);
/* Its room is used again when that is safe. */
int memlift_tx_free(memlift_tx *tx, memlift_type type, memlift_object object);
/* Says that bytes [from, from + bytes) of an object will change, before they do. data becomes the address of the first. What was
 * there is kept for an abort; at commit the words that differ are logged. Stores outside of such ranges are lost or, worse, kept
 * in part: they break the promise. */
int memlift_tx_add_range(memlift_tx *tx, memlift_type type, memlift_object object, uint64_t from, uint64_t bytes,
                         void **data);
/* The same and a copy. */
int memlift_tx_write(memlift_tx *tx, memlift_type type, memlift_object object, uint64_t from, const void *source,
                     uint64_t bytes);
/* The object with what the transaction changed. bytes may be NULL. */
int memlift_tx_get(memlift_tx *tx, memlift_type type, memlift_object object, const void **data, uint64_t *bytes);

/* The object from which all others can be found; object 0: none. */
int memlift_tx_set_root(memlift_tx *tx, memlift_type type, memlift_object object);
/* *object becomes 0 when there is none. MEMLIFT_NO_OBJECT: it is of another type. */
int memlift_tx_root(memlift_tx *tx, memlift_type type, memlift_object *object);

/* ---- reading ---- */

typedef struct memlift_reader memlift_reader;

/* Locks the pool for reading: others read, too, and nobody changes anything until memlift_read_end. */
int memlift_read_begin(memlift_pool *pool, memlift_reader **reader);
/* Frees reader. NULL is allowed. */
int memlift_read_end(memlift_reader *reader);
int memlift_read_get(memlift_reader *reader, memlift_type type, memlift_object object, const void **data, uint64_t *bytes);
int memlift_read_root(memlift_reader *reader, memlift_type type, memlift_object *object);

/* ---- the primitives of NearPM, Table 2, by name ----
 *
 * The paper's first two arguments, pool_id and thread_id, are one transaction here: it knows both. Its pointers are a type, an
 * object and bytes of it, so that they can be checked. What the paper's device promises by its ordering of commands (PPO), the
 * commit's fence promises here: no store to an object's place becomes durable before the log that undoes or redoes it. */

/* NearPM_init_device(device_path): opens the pool at device_path, or creates it. Durable: the pool itself, when it returns. */
int memlift_nearpm_init_device(const char *device_path, const memlift_pool_options *options, memlift_pool **pool);

/* NearPM_undolog_create(pool_id, thread_id, old_data_ptr, size): keeps bytes [from, from + size) as they are, then they may be
 * stored to at *data. Range: exactly these bytes. Durable: the old data are what a crash leaves until memlift_nearpm_commit_log,
 * and what memlift_tx_abort brings back. No fence: with MEMLIFT_REDO the stores go to memory that is not the object's place;
 * with MEMLIFT_UNDO the old data are durable when this returns. */
int memlift_nearpm_undolog_create(memlift_tx *tx, memlift_type type, memlift_object old_data, uint64_t from, uint64_t size,
                                  void **data);

/* One range of a redo log: data become the bytes [from, from + bytes) of object. */
typedef struct memlift_nearpm_redo {
    memlift_type type;
    memlift_object object;
    uint64_t from;
    uint64_t bytes;
    const void *data;
} memlift_nearpm_redo;

/* NearPM_applylog(pool_id, thread_id, redolog_ptr, size): copies a redo log's ranges to their objects, in order. If one is refused,
 * none is copied. Range: the bytes named. Durable: all of them together with memlift_nearpm_commit_log; their way to their
 * place, behind the log, is memlift's own affair, after a crash too. */
int memlift_nearpm_applylog(memlift_tx *tx, const memlift_nearpm_redo *redolog, size_t size);

/* NearPM_commit_log(pool_id, thread_id): commits all logs of the transaction and deletes them; tx is gone. Durable: everything
 * that its other primitives named, when this gives MEMLIFT_OK, by one fence or fdatasync (MEMLIFT_BUFFERED: by the next one). */
int memlift_nearpm_commit_log(memlift_tx *tx);

/* NearPM_ckpoint_create(pool_id, thread_id, old_data_ptr, size): as undolog_create, for whole pages: the range is widened to multiples
 * of 4096 within the object, of which *data is the first byte asked for. Of each page only the words that differ are logged. */
int memlift_nearpm_ckpoint_create(memlift_tx *tx, memlift_type type, memlift_object old_data, uint64_t from, uint64_t size,
                                  void **data);

/* NearPM_shadowcpy(pool_id, thread_id, page_ptr, size): copies an object to a new one, which may be stored to at *data. The old one
 * stays as it is: who pointed to it switches to *copy in the same transaction and frees it. Range: the whole new object. Durable:
 * copy, switch and freeing together, with memlift_nearpm_commit_log. */
int memlift_nearpm_shadowcpy(memlift_tx *tx, memlift_type type, memlift_object page, memlift_object *copy, void **data);

#ifdef __cplusplus
}
#endif

#endif
