/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * memlift traverse: pointer walks that run where the data lives, and maps that lie on memory nodes.
 *
 * Flow    memlift_walks_connect ; memlift_walk_program_new: bytecode (clang -target bpf), verified ; memlift_walk at once,
 *         memlift_walk_many together, memlift_walk_submit and _poll without waiting ; memlift_hash_…, memlift_ordered_…: maps
 * Order   as in memlift.h: 0 is good, below 0 memlift_last_error() says why. After MEMLIFT_NO_ANSWER it is not known whether a
 *         change was made; it was made once at most. A walk sees the scratchpad's bytes that were given, and zeros behind them.
 * Owner   addresses are those of the nodes, not of this process. Scratchpads, results and values are the caller's memory; a
 *         client, its programs and its maps may be closed in any order.
 * Threads a client may be used from any thread; calls take turns.
 * Fork    a child connects for itself.
 *
 * What programs may do, and the header for them: services/traverse/programs/memlift_walk.h. A node that is lost takes what it had
 * with it, except for what is in its log, unless it was started with --replicate: then its backup goes on.
 */
#ifndef MEMLIFT_TRAVERSE_H
#define MEMLIFT_TRAVERSE_H

#include <memlift.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- clients ---- */

typedef struct memlift_walks memlift_walks;

/* The proof that a node with a backup wants before it answers a read; others answer as usual. */
enum memlift_reads {
    MEMLIFT_READS_LEASED = 0,    /* its lease in etcd held after the last load: clocks whose rates differ by less than 6 % */
    MEMLIFT_READS_CONFIRMED = 1, /* its backup said after the last load that it is the primary: no clock, one more round trip */
    MEMLIFT_READS_STALE_OK = 2   /* the backup may answer from its copy: older than what was acknowledged, also while nobody is
                                    the primary. Such a client changes nothing: MEMLIFT_BAD_ARGUMENT */
};

/* All zero is the default. */
typedef struct memlift_walk_options {
    const unsigned char *key; /* the tenant's 32 bytes; NULL: for nodes that ask for none */
    uint32_t tenant;
    uint32_t window;      /* requests under way at a time, at most 512; 0: 128 */
    uint32_t deadline_ms; /* that an answer is waited for, less than 30000; 0: 10000 */
    uint32_t iterations;  /* of a walk, over all nodes; 0: 4194304 */
    uint32_t reads;       /* enum memlift_reads */
    uint32_t reserved[3]; /* 0 */
} memlift_walk_options;

/* Connects to nodes: "ADDRESS:PORT", or "shm:NAME" on this machine. options may be NULL. MEMLIFT_NOT_CONNECTED, _NO_ANSWER. */
int memlift_walks_connect(const char *const *nodes, size_t count, const memlift_walk_options *options, memlift_walks **walks);
/* To all nodes of a map: "file:PATH", "coordinator:HOST:PORT[?key=FILE]", "etcd:https://HOST:PORT[/PREFIX][?OPTIONS]". */
int memlift_walks_connect_map(const char *map, const memlift_walk_options *options, memlift_walks **walks);
/* NULL is allowed. Maps that were made with it go on working until they are closed. */
void memlift_walks_close(memlift_walks *walks);

/* ---- programs ---- */

typedef struct memlift_walk_program memlift_walk_program;

/* Of instructions of eight bytes, for a scratchpad of scratch_bytes (a multiple of 8, at most 4096). MEMLIFT_BAD_PROGRAM. */
int memlift_walk_program_new(const char *name, const void *bytecode, size_t bytes, uint32_t scratch_bytes,
                             memlift_walk_program **program);
/* Of an object file's only global function. */
int memlift_walk_program_object(const char *name, const void *object, size_t bytes, uint32_t scratch_bytes,
                                memlift_walk_program **program);
/* One that comes with memlift, by its name: "hash_find", "stl_map", … */
int memlift_walk_program_shipped(const char *name, memlift_walk_program **program);
/* NULL is allowed. */
void memlift_walk_program_free(memlift_walk_program *program);

/* ---- walks ---- */

enum memlift_walk_outcome {
    MEMLIFT_WALK_DONE = 0,    /* the scratchpad is the answer */
    MEMLIFT_WALK_MISSING = 1, /* nothing was found */
    MEMLIFT_WALK_APPLIED = 2, /* eight bytes were changed; value is what they were */
    MEMLIFT_WALK_DIFFERS = 3  /* they were something else than expected: value */
};

typedef struct memlift_walked {
    uint64_t value;
    uint64_t result_bytes; /* what the walk emitted; more than the room: MEMLIFT_TARGET_TOO_SMALL, and none of it was written */
    uint32_t outcome;      /* enum memlift_walk_outcome */
    uint32_t hops;         /* how often it went on to another node of its structure */
} memlift_walked;

/* Walks from an address. The scratchpad's bytes are what it starts with, and become what it ended with; result may be NULL where
 * room is 0, walked may be NULL. MEMLIFT_NO_ANSWER, _NO_ADDRESS, _FORBIDDEN, _WALK_FAILED, _TARGET_TOO_SMALL. */
int memlift_walk(const memlift_walks *walks, const memlift_walk_program *program, uint64_t start, void *scratch,
                 size_t scratch_bytes, void *result, size_t result_room, memlift_walked *walked);

typedef struct memlift_walk_request {
    const memlift_walk_program *program;
    uint64_t start;
    void *scratch;
    size_t scratch_bytes;
    void *result;
    size_t result_room;
    memlift_walked walked; /* written */
    int code;              /* written: as memlift_walk returns it */
} memlift_walk_request;

/* All of them under way together. What it returns is about the call itself; each request has its own code. */
int memlift_walk_many(const memlift_walks *walks, memlift_walk_request *requests, size_t count);

/* Sends a walk; waits only when the window is full. The scratchpad is copied. */
int memlift_walk_submit(const memlift_walks *walks, const memlift_walk_program *program, uint64_t start, const void *scratch,
                        size_t scratch_bytes, uint64_t *ticket);
/* Its answer, once; MEMLIFT_MORE (1): not there within wait_ms, ask again. Polling for one ticket moves all of them. */
int memlift_walk_poll(const memlift_walks *walks, uint64_t ticket, uint32_t wait_ms, void *scratch, size_t scratch_bytes,
                      void *result, size_t result_room, memlift_walked *walked);
/* Nobody will ask for this answer. */
int memlift_walk_abandon(const memlift_walks *walks, uint64_t ticket);

/* ---- memory of the nodes ---- */

/* At a multiple of 64 where bytes is one. MEMLIFT_NODE_FULL. */
int memlift_walks_alloc(const memlift_walks *walks, uint64_t bytes, uint64_t *address);
/* Allocated with so many bytes, and nobody refers to it any more. */
int memlift_walks_free(const memlift_walks *walks, uint64_t address, uint64_t bytes);
int memlift_walks_read(const memlift_walks *walks, uint64_t address, void *target, size_t bytes);
/* Bytes that no walk reads yet. */
int memlift_walks_write(const memlift_walks *walks, uint64_t address, const void *source, size_t bytes);

/* ---- hash maps ---- */

typedef struct memlift_hash memlift_hash;

/* Where a map is: may be kept, sent, and opened by any client. memory says which memory the address is of: a node that was started
 * again without its log has another one, and opening gives MEMLIFT_NO_ADDRESS. 0: not checked. run and changes say what the node had
 * acknowledged when the map was made: a node that was started with an older copy of its log does not know it, and opening gives
 * MEMLIFT_NO_ADDRESS. 0: not checked. */
typedef struct memlift_hash_handle {
    uint64_t heads;
    uint64_t log2;
    uint64_t memory;
    uint64_t run;
    uint64_t changes;
} memlift_hash_handle;

typedef struct memlift_key {
    uint64_t number;   /* counts where bytes is NULL */
    const void *bytes; /* 1 to 128 of them */
    size_t length;
} memlift_key;

/* For about so many entries: it does not grow, its chains do. */
int memlift_hash_create(const memlift_walks *walks, uint64_t expected, memlift_hash **map);
int memlift_hash_open(const memlift_walks *walks, memlift_hash_handle handle, memlift_hash **map);
int memlift_hash_where(const memlift_hash *map, memlift_hash_handle *handle);
/* Frees the handle; the map's data stays on the nodes. NULL is allowed. */
void memlift_hash_close(memlift_hash *map);
/* length may be NULL; it is the value's also when there is too little room (MEMLIFT_TARGET_TOO_SMALL). */
int memlift_hash_get(const memlift_hash *map, memlift_key key, void *value, size_t room, size_t *length, int *found);
/* fresh, removed: may be NULL. MEMLIFT_NODE_FULL, _CONTENDED. */
int memlift_hash_insert(const memlift_hash *map, memlift_key key, const void *value, size_t length, int *fresh);
int memlift_hash_delete(const memlift_hash *map, memlift_key key, int *removed);
/* Adds to the first eight bytes of a number's value, exactly once; before: what they were. Value and addend are taken for int64_t. A sum
 * that does not fit gives MEMLIFT_BAD_ARGUMENT, and the value is unchanged. */
int memlift_hash_add(const memlift_hash *map, uint64_t key, uint64_t addend, uint64_t *before, int *found);

/* ---- ordered maps: numbers to values of one length ---- */

typedef struct memlift_ordered memlift_ordered;

typedef struct memlift_ordered_handle {
    uint64_t cell;
    uint64_t value_bytes;
    uint64_t memory; /* these three as in memlift_hash_handle */
    uint64_t run;
    uint64_t changes;
} memlift_ordered_handle;

typedef struct memlift_aggregate {
    uint64_t count;
    int64_t sum; /* one that does not fit gives MEMLIFT_BAD_ARGUMENT */
    int64_t min; /* 0 of none */
    int64_t max;
} memlift_aggregate;

/* value_bytes: 1 to 240; 8 for numbers to be added. */
int memlift_ordered_create(const memlift_walks *walks, size_t value_bytes, memlift_ordered **map);
int memlift_ordered_open(const memlift_walks *walks, memlift_ordered_handle handle, memlift_ordered **map);
int memlift_ordered_where(const memlift_ordered *map, memlift_ordered_handle *handle);
/* As memlift_hash_close. */
void memlift_ordered_close(memlift_ordered *map);
int memlift_ordered_get(const memlift_ordered *map, uint64_t key, void *value, size_t room, int *found);
int memlift_ordered_insert(const memlift_ordered *map, uint64_t key, const void *value, size_t length, int *fresh);
int memlift_ordered_delete(const memlift_ordered *map, uint64_t key, int *removed);
/* Records from key first to last, both included, as many as fit: u64 key, then the value, filled up to 8 bytes. All as of one
 * moment. */
int memlift_ordered_range(const memlift_ordered *map, uint64_t first, uint64_t last, void *records, size_t room, size_t *count);
/* Of values of 8 bytes with a sign, computed at the nodes, as of one moment. */
int memlift_ordered_aggregate(const memlift_ordered *map, uint64_t first, uint64_t last, memlift_aggregate *totals);

#ifdef __cplusplus
}
#endif

#endif
