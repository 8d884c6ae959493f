/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * memlift: copy that seals, opens, packs, unpacks or checks on the way. memlift_persist.h: objects that survive a crash.
 *
 * Flow    memlift_context_new, memlift_add_...: what to do ; memlift_compcpy or memlift_transform: do it while copying ;
 *         memlift_result: how many bytes, the tag, the checksums
 * Order   0 is good, MEMLIFT_MORE means call again, below 0 nothing was done. memlift_error(code) is its text,
 *         memlift_last_error() the thread's last one with its numbers.
 * Owner   who makes an object frees it. Keys and additional data are copied; buffers stay the caller's and must not be
 *         changed by anybody while a call runs.
 * Threads all functions may be called from any thread; one object is used by one thread at a time. No function starts a
 *         thread.
 * Fork    objects may be used in the child.
 *
 * Link with -lmemlift_c. The interface is that of SmartDIMM's CompCpy (Algorithm 2); the CPU's own vector units do the
 * work. docs/guides/transform.md explains the rest.
 */
#ifndef MEMLIFT_H
#define MEMLIFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- codes ---- */

enum memlift_code {
    MEMLIFT_OK = 0,
    MEMLIFT_MORE = 1,              /* a packer has more to write */
    MEMLIFT_WRONG_TAG = -1,        /* not what was sealed; what was written is zeroed */
    MEMLIFT_CORRUPT = -2,          /* the packed stream cannot be read */
    MEMLIFT_CHECKSUM = -3,         /* a block of a framed message has another checksum */
    MEMLIFT_TARGET_TOO_SMALL = -4, /* nothing behind the target's end was written */
    MEMLIFT_INCOMPRESSIBLE = -5,   /* packing would need more than the source has: send the plain bytes */
    MEMLIFT_OVERLAP = -6,
    MEMLIFT_NOT_ALIGNED = -7,      /* the paper's "Not Aligned" */
    MEMLIFT_TOO_LONG = -8,         /* more than 2^36 - 32 bytes under one nonce */
    MEMLIFT_BUSY = -9,             /* all scratch memory in use, and no more patience */
    MEMLIFT_BAD_KEY = -10,         /* neither 16 nor 32 bytes */
    MEMLIFT_BAD_CHAIN = -11,       /* steps that do not follow each other */
    MEMLIFT_BAD_ORDER = -12,       /* also: this nonce has sealed a message */
    MEMLIFT_UNSUPPORTED = -13,     /* a format that is not built in, or not in pieces */
    MEMLIFT_BAD_ARGUMENT = -14,    /* NULL where there are bytes, an unknown number */
    MEMLIFT_INTERNAL = -15,        /* a fault inside was caught */
    /* of memlift_persist.h */
    MEMLIFT_POOL_IN_USE = -16,     /* a pool has one owner at a time */
    MEMLIFT_NOT_A_POOL = -17,      /* another kind of file, version or program */
    MEMLIFT_POOL_DAMAGED = -18,
    MEMLIFT_POOL_FULL = -19,
    MEMLIFT_TX_TOO_LARGE = -20,    /* nothing of the transaction happened */
    MEMLIFT_NO_OBJECT = -21,       /* null, freed, of another type, or shorter than was asked for */
    MEMLIFT_POOL_STOPPED = -22,    /* the disk failed; what was acknowledged is safe */
    MEMLIFT_READ_ONLY = -23,
    MEMLIFT_FILE_FAILED = -24,     /* a call of the system failed */
    MEMLIFT_FILE_EXISTS = -25,
    /* of memory nodes */
    MEMLIFT_NO_ANSWER = -26,
    MEMLIFT_NO_ADDRESS = -27,
    MEMLIFT_FORBIDDEN = -28,
    MEMLIFT_NODE_FULL = -29,
    MEMLIFT_WALK_FAILED = -30,
    MEMLIFT_CONTENDED = -31,
    MEMLIFT_BAD_PROGRAM = -32,
    MEMLIFT_NOT_CONNECTED = -33,
    MEMLIFT_WRONG_STRUCTURE = -34,
    /* of memlift_zmem.h */
    MEMLIFT_NO_MEMORY = -35,
    /* of memlift_ipc.h */
    MEMLIFT_NO_SERVER = -36,
    MEMLIFT_PEER_DIED = -37,
    MEMLIFT_PEER_FAULT = -38,
    MEMLIFT_LATE = -39,
    MEMLIFT_CALL_FAILED = -40, /* by the server; memlift_last_error has what it said */
    MEMLIFT_NO_DEVICE = -41,
    MEMLIFT_ADDRESS_IN_USE = -42,
    MEMLIFT_SNAPSHOT_GONE = -43,
    MEMLIFT_REPLICA_FAILED = -44, /* it is damaged, or its store is not to be had */
    MEMLIFT_NOT_REPLICATED = -45  /* the change is in the pool's file, and not in the replica */
};

/* Static text for a code. */
const char *memlift_error(int code);
/* Text of this thread's last failure; valid until its next one. */
const char *memlift_last_error(void);
/* "0.1.0" */
const char *memlift_version(void);

/* ---- what to do ---- */

enum memlift_format {
    MEMLIFT_DEFLATE = 0, /* RFC 1951, no wrapper */
    MEMLIFT_ZLIB = 1,    /* RFC 1950 */
    MEMLIFT_GZIP = 2,    /* RFC 1952, one member */
    MEMLIFT_LZ4 = 3,     /* one block, no frame: the source is exactly one block */
    MEMLIFT_ZSTD = 4,    /* one frame, RFC 8878 */
    MEMLIFT_PAGES = 5    /* memlift's: each 4096 bytes by what they hold */
};

/* For deflate, zlib and gzip, in sizes that zlib's level 6 gives, for web pages of up to 16 KiB. */
enum memlift_effort {
    MEMLIFT_FAST = 0,    /* about 1.28 x */
    MEMLIFT_DEFAULT = 1, /* about 1.09 x */
    MEMLIFT_SMALL = 2,   /* the same, or smaller; also for long messages */
    MEMLIFT_ADAPTIVE = 3 /* MEMLIFT_DEFAULT, but MEMLIFT_FAST while the caches are contended */
};

typedef struct memlift_context memlift_context;

/* A context without steps copies. Steps, in this order:
 *   flat    crc32c?, one of { seal, open, pack, unpack, pack seal, open unpack }, crc32c?
 *   framed  crc32c?, pack, seal? | crc32c?, seal | open?, unpack, crc32c? | open, crc32c?
 * The call that runs them gives MEMLIFT_BAD_CHAIN for others. */
memlift_context *memlift_context_new(void);
/* NULL is allowed. Keys are overwritten. */
void memlift_context_free(memlift_context *context);

/* CRC-32C of what passes; seed 0, or the value of the bytes before. */
int memlift_add_crc32c(memlift_context *context, uint32_t seed);
/* AES-GCM with a key of 16 or 32 bytes. A nonce seals one message: a second call with it gives MEMLIFT_BAD_ORDER. */
int memlift_add_seal(memlift_context *context, const uint8_t *key, size_t key_bytes, const uint8_t nonce[12],
                     const uint8_t *aad, size_t aad_bytes);
/* tag: what sealing gave; NULL in a framed chain, or where memlift_set_tag follows. */
int memlift_add_open(memlift_context *context, const uint8_t *key, size_t key_bytes, const uint8_t nonce[12],
                     const uint8_t *aad, size_t aad_bytes, const uint8_t *tag);
int memlift_add_pack(memlift_context *context, int format, int effort);
int memlift_add_unpack(memlift_context *context, int format);

/* Makes it a framed chain (docs/formats/transform.md) of blocks of 4096 to 65536 bytes, whole pages; 0: flat again. Add
 * the steps first. The nonce of a framed chain ends with five zero bytes. */
int memlift_set_frames(memlift_context *context, size_t block_bytes);

/* For the next message, with the key that is already expanded. */
int memlift_set_nonce(memlift_context *context, const uint8_t nonce[12]);
int memlift_set_aad(memlift_context *context, const uint8_t *aad, size_t aad_bytes);
int memlift_set_tag(memlift_context *context, const uint8_t tag[16]);
/* How long memlift_transform waits for scratch memory: milliseconds, 0 for not at all, below 0 (the default) for ever.
 * memlift_compcpy waits. */
int memlift_set_patience(memlift_context *context, int64_t milliseconds);

/* Target bytes that always suffice. SIZE_MAX: nobody can say (unpacking), or the steps make no chain. */
size_t memlift_bound(memlift_context *context, size_t source_bytes);

/* ---- do it ---- */

/* CompCpy: does what the context says while it copies size bytes from sbuff to dbuff. Both are page-aligned (multiples of
 * 4096), else MEMLIFT_NOT_ALIGNED. dbuff has size bytes rounded up to whole pages, also for what packs: what does not fit
 * is MEMLIFT_INCOMPRESSIBLE or MEMLIFT_TARGET_TOO_SMALL. ordered, if not 0: the target's lines of 64 bytes become visible
 * in ascending order; what packs takes up to 64 KiB then, or frames (else MEMLIFT_BAD_CHAIN). NULL for the context
 * copies. */
int memlift_compcpy(void *dbuff, const void *sbuff, size_t size, memlift_context *context, int ordered);

/* The same for any addresses. Writes at most target_bytes. *written (may be NULL) becomes the bytes written, 0 after a
 * failure. Sealing, opening and copying also work in place (source == target). */
int memlift_transform(memlift_context *context, const void *source, size_t source_bytes, void *target,
                      size_t target_bytes, size_t *written);

/* CRC-32C of bytes bytes; seed 0, or the value of the bytes before. */
uint32_t memlift_crc32c(const void *source, size_t bytes, uint32_t seed);

/* ---- what came of it ---- */

enum memlift_has {
    MEMLIFT_HAS_TAG = 1,
    MEMLIFT_HAS_CRC = 2,
    MEMLIFT_HAS_CRC_AFTER = 4
};

typedef struct memlift_outcome {
    uint64_t read;      /* bytes of the source (unpacking stops at the stream's end) */
    uint64_t written;   /* bytes of the target */
    uint32_t has;       /* which of the following are set: enum memlift_has */
    uint32_t crc;       /* of a checksum over what was read (the plain bytes, in frames) */
    uint32_t crc_after; /* of a checksum behind the last step, if there is one in front, too */
    uint32_t store;     /* 0 through the caches, 1 past them, 2 read and written past them */
    uint32_t why;       /* reason, 16 to 23: docs/formats/stats.md */
    uint32_t contended; /* whether the caches counted as contended */
    uint8_t tag[16];    /* of sealing, unless tags are in frames */
} memlift_outcome;

/* Of the context's last call; zeros if that failed. */
int memlift_result(memlift_context *context, memlift_outcome *outcome);

/* Writes why messages like these are placed as they are, in words, cut off at text_bytes with a zero at the end. Gives the
 * length of all of it, or a code below 0. */
int memlift_explain(memlift_context *context, size_t source_bytes, char *text, size_t text_bytes);

/* ---- messages in pieces ---- */

typedef struct memlift_packer memlift_packer;
typedef struct memlift_sealer memlift_sealer;
typedef struct memlift_opener memlift_opener;

enum memlift_flush {
    MEMLIFT_FLUSH_NONE = 0,
    MEMLIFT_FLUSH_SYNC = 1,  /* a reader can unpack everything up to here */
    MEMLIFT_FLUSH_FULL = 2,  /* and can start to read here */
    MEMLIFT_FLUSH_FINISH = 3 /* the message ends */
};

/* MEMLIFT_DEFLATE, _ZLIB or _GZIP; MEMLIFT_FAST, _DEFAULT or _SMALL. NULL: see memlift_last_error. About 320 KiB. */
memlift_packer *memlift_packer_new(int format, int effort);
/* Reads source and writes target, as much as there is of both: *read and *written. MEMLIFT_MORE: call again with the rest
 * of the source, new room and the same flush. */
int memlift_packer_push(memlift_packer *packer, const void *source, size_t source_bytes, size_t *read, void *target,
                        size_t target_bytes, size_t *written, int flush);
void memlift_packer_free(memlift_packer *packer);

/* One message of AES-GCM. Its pieces come in order and of any size (push), or anywhere at multiples of 16 and each byte
 * once (at); the two do not mix. Source and target are equal or apart. */
memlift_sealer *memlift_sealer_new(const uint8_t *key, size_t key_bytes, const uint8_t nonce[12], const uint8_t *aad,
                                   size_t aad_bytes);
int memlift_sealer_push(memlift_sealer *sealer, const void *source, void *target, size_t bytes);
int memlift_sealer_at(memlift_sealer *sealer, uint64_t at, const void *source, void *target, size_t bytes);
int memlift_sealer_finish(memlift_sealer *sealer, uint8_t tag[16]);
void memlift_sealer_free(memlift_sealer *sealer);

/* The reverse, into target. What lies there is untrusted until memlift_opener_finish gives MEMLIFT_OK: anybody may have
 * made it up. After MEMLIFT_WRONG_TAG, and when it is freed before, all of the target is zero. */
memlift_opener *memlift_opener_new(const uint8_t *key, size_t key_bytes, const uint8_t nonce[12], const uint8_t *aad,
                                   size_t aad_bytes, void *target, size_t target_bytes);
int memlift_opener_push(memlift_opener *opener, const void *source, size_t bytes);
int memlift_opener_at(memlift_opener *opener, uint64_t at, const void *source, size_t bytes);
int memlift_opener_finish(memlift_opener *opener, const uint8_t tag[16]);
void memlift_opener_free(memlift_opener *opener);

#ifdef __cplusplus
}
#endif

#endif
