/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * memlift ipc: call another process with arrays, over memory that both map.
 *
 * Flow    memlift_client_connect ; then, each with the same options: memlift_call waits for its answer ; memlift_call_async gives a
 *         job to wait for later ; a pipeline takes many and gives their answers as they come ; a watch has a file descriptor for an
 *         event loop, and never waits
 * Order   as in memlift.h: 0 is good, below 0 nothing was done, memlift_last_error() says why.
 * Owner   data is copied before a call returns, and may be changed then. An answer lies in shared memory, where the server could
 *         still write: copy it before you judge it. It is freed with memlift_answer_free, also after its client.
 * Threads any number of threads may use one client, or one server; a job, pipeline, watch or request is used by one thread at a time.
 *         A server has threads of its own. A process with a client has one that sleeps until a server dies, and for a while one that
 *         gives memory back; device MEMLIFT_DEVICE_WORKER and large copies share the engine's threads.
 * Fork    a client or server belongs to the process that made it.
 *
 * Clients and servers may be written in different languages: docs/guides/ipc.md.
 */
#ifndef MEMLIFT_IPC_H
#define MEMLIFT_IPC_H

#include <memlift.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memlift_client memlift_client;
typedef struct memlift_job memlift_job;
typedef struct memlift_pipeline memlift_pipeline;
typedef struct memlift_watch memlift_watch;
typedef struct memlift_loan memlift_loan;
typedef struct memlift_answer memlift_answer;

enum memlift_device {
    MEMLIFT_DEVICE_AUTO = 0,   /* as measured */
    MEMLIFT_DEVICE_INLINE = 1, /* the calling thread copies */
    MEMLIFT_DEVICE_WORKER = 2, /* engine threads copy, while the calling thread sleeps */
    MEMLIFT_DEVICE_DSA = 3     /* MEMLIFT_NO_DEVICE where there is no work queue for this program */
};

enum memlift_cache {
    MEMLIFT_CACHE_AUTO = 0, /* on; in a pipeline off; for large data, then, as measured */
    MEMLIFT_CACHE_ON = 1,   /* copies of request and reply stay in the cache for their reader */
    MEMLIFT_CACHE_OFF = 2   /* they go past it */
};

/* All zero is the default; so is NULL. */
typedef struct memlift_call_options {
    double timeout_s;      /* 0: what the configuration says, or no limit */
    uint32_t device;       /* enum memlift_device */
    uint32_t cache;        /* enum memlift_cache */
    uint32_t look_at_once; /* not 0: look for the answer at once, instead of sleeping until shortly before it is expected */
    uint32_t crc;          /* not 0: CRC-32C of request and reply, compared where they arrive; MEMLIFT_CHECKSUM */
    uint32_t pack;         /* not 0: request and reply cross in packed pages where they become at least an eighth smaller */
    uint32_t reserved;     /* 0 */
} memlift_call_options;

/* A name, or the path of a socket file. MEMLIFT_NO_SERVER. */
int memlift_client_connect(const char *address, memlift_client **client);
/* NULL is allowed. */
void memlift_client_free(memlift_client *client);

typedef struct memlift_load {
    uint32_t sessions;
    uint32_t handlers;      /* operations that take long and may run at once */
    uint32_t busy_handlers; /* operations that run now */
    uint32_t queued;        /* requests that wait for a handler */
} memlift_load;

/* How busy the server is, as it wrote last into shared memory. */
int memlift_client_load(const memlift_client *client, memlift_load *load);

/* Calls an operation with bytes and waits for its answer. MEMLIFT_CALL_FAILED: the server has no such operation, or its handler
 * failed; MEMLIFT_LATE; MEMLIFT_TOO_LONG; MEMLIFT_NO_MEMORY; MEMLIFT_PEER_DIED. */
int memlift_call(const memlift_client *client, const char *operation, const void *data, size_t bytes,
                 const memlift_call_options *options, memlift_answer **answer);

/* ---- arrays ---- */

/* An array as Python's numpy, Rust and C know it: elements in C order. */
typedef struct memlift_array {
    const void *data;       /* the first element; sent: NULL if there is none */
    uint64_t bytes;         /* of all elements; sent: 0 is what shape and element_bytes say, anything else must be the same */
    uint32_t kind;          /* 'b' bool, 'i' signed, 'u' unsigned, 'f' float, 'c' complex; got: 0 bytes without a type,
                               'v' a value that describes itself (docs/formats/values.md) */
    uint32_t element_bytes; /* b 1; i and u 1, 2, 4, 8; f 2, 4, 8; c 8, 16 */
    uint32_t dimensions;    /* 0 (one element) to 8 */
    uint32_t reserved;      /* 0 */
    uint64_t shape[8];      /* outermost first */
} memlift_array;

/* Calls an operation with an array, which its server gets as one. As memlift_call; MEMLIFT_BAD_ARGUMENT names what is wrong with it. */
int memlift_call_array(const memlift_client *client, const char *operation, const memlift_array *array,
                       const memlift_call_options *options, memlift_answer **answer);
/* Describes an answer; its data lies in the answer. A server in Python that returns a numpy array answers with an array; one that
 * returns a dict, a list or a number answers with a value. */
int memlift_answer_array(const memlift_answer *answer, memlift_array *array);

/* ---- values ---- */

/* What a Python process sent or answered that is no array: numbers, text, lists, dicts, nested as there. Valid as long as its answer
 * or request; copy it freely. Its bytes are checked where they are used: MEMLIFT_CORRUPT. */
typedef struct memlift_value {
    const void *message;
    uint64_t bytes;
    uint64_t at;
    uint64_t left;
    uint32_t depth;
    uint32_t reserved;
} memlift_value;

enum memlift_value_kind {
    MEMLIFT_VALUE_NONE = 0,
    MEMLIFT_VALUE_BOOL = 1,
    MEMLIFT_VALUE_INT = 2,
    MEMLIFT_VALUE_FLOAT = 3,
    MEMLIFT_VALUE_COMPLEX = 4,
    MEMLIFT_VALUE_TEXT = 5,    /* str, as UTF-8 */
    MEMLIFT_VALUE_BYTES = 6,   /* bytes, bytearray */
    MEMLIFT_VALUE_LIST = 7,    /* list, tuple, set, frozenset */
    MEMLIFT_VALUE_DICT = 8,
    MEMLIFT_VALUE_ARRAY = 9,   /* a numpy array, or one element */
    MEMLIFT_VALUE_SPECIAL = 10 /* something that has a class of its own: its text is its name ("dataclass", "pandas.frame"), its one
                                  child what it is made of (docs/formats/values.md) */
};

/* The value of an answer or of a request. MEMLIFT_BAD_ARGUMENT: it is an array or bytes; memlift_answer_array describes those. */
int memlift_answer_value(const memlift_answer *answer, memlift_value *value);
/* enum memlift_value_kind */
int memlift_value_kind(const memlift_value *value, uint32_t *kind);
/* How many values a list has, or entries a dict; 0 of others, 1 of a special. */
int memlift_value_count(const memlift_value *value, uint64_t *count);
/* The first value in a list, dict or special. A dict has key, value, key, value. MEMLIFT_NO_OBJECT: it is empty. */
int memlift_value_first(const memlift_value *value, memlift_value *first);
/* Becomes the next value of the same list or dict. MEMLIFT_NO_OBJECT: it was the last one. Takes as long as what is in it is large. */
int memlift_value_next(memlift_value *value);
/* The value of a key of a dict that is text. MEMLIFT_NO_OBJECT: the dict has no such key. */
int memlift_value_get(const memlift_value *value, const char *key, memlift_value *found);
/* A whole number of 64 bits, or a bool as 0 or 1. MEMLIFT_BAD_ARGUMENT: it is something else, or larger. */
int memlift_value_int(const memlift_value *value, int64_t *number);
/* A float, or a whole number that a double is equal to. */
int memlift_value_double(const memlift_value *value, double *number);
/* Where text or bytes lie; not ended by a zero. The name of a special. */
int memlift_value_text(const memlift_value *value, const char **start, uint64_t *bytes);
/* Describes an array in C order, little-endian; its data lies in the answer or request. Kinds besides those of calls: 'm' and 'M' times,
 * 'S' bytes, 'U' text of 4 bytes a character, 'V' records. */
int memlift_value_array(const memlift_value *value, memlift_array *array);

/* ---- jobs ---- */

/* Sends a call. */
int memlift_call_async(const memlift_client *client, const char *operation, const void *data, size_t bytes,
                       const memlift_call_options *options, memlift_job **job);
/* The same with an array. */
int memlift_call_array_async(const memlift_client *client, const char *operation, const memlift_array *array,
                             const memlift_call_options *options, memlift_job **job);
/* 1: its answer is there; 0: not yet. */
int memlift_job_done(const memlift_job *job);
/* Waits for its answer, timeout_s at most (0: without limit). After MEMLIFT_LATE it may be waited for again, unless that was the
 * call's own limit. */
int memlift_job_wait(memlift_job *job, double timeout_s, memlift_answer **answer);

enum memlift_job_states { MEMLIFT_JOB_QUEUED = 1, MEMLIFT_JOB_TAKEN = 2, MEMLIFT_JOB_ANSWERED = 3 };

typedef struct memlift_job_state_t {
    uint64_t ahead; /* queued: requests before it */
    uint64_t done;  /* taken: so much of total, as its handler says; 0 if it says nothing */
    uint64_t total;
    uint32_t state; /* enum memlift_job_states */
    uint32_t reserved;
} memlift_job_state_t;

/* Asks the server what has become of it. */
int memlift_job_state(const memlift_job *job, double timeout_s, memlift_job_state_t *state);
/* Nobody wants the answer any more, if it was not taken. NULL is allowed. */
void memlift_job_free(memlift_job *job);

/* ---- pipelines ---- */

/* At most depth calls unanswered; a server that sleeps is woken once for batch calls, 0: for as many as gave the most answers per
 * second. NULL: memlift_last_error. */
memlift_pipeline *memlift_pipeline_new(const memlift_client *client, size_t depth, size_t batch);
/* Sends a call and gives its number, which is never 0. Waits while depth calls are unanswered. */
int memlift_pipeline_submit(memlift_pipeline *pipeline, const char *operation, const void *data, size_t bytes,
                            const memlift_call_options *options, uint64_t *id);
/* Sees that the server notices all calls now, also those of a batch that is not full. */
int memlift_pipeline_flush(memlift_pipeline *pipeline);
/* The next answer, in the order in which they come; id 0: there are no more. Of a call that failed: its code, and its id. */
int memlift_pipeline_next(memlift_pipeline *pipeline, double timeout_s, uint64_t *id, memlift_answer **answer);
/* NULL is allowed. */
void memlift_pipeline_free(memlift_pipeline *pipeline);

/* ---- event loops ---- */

/* Takes the client's session over: use the client for nothing that waits from now on. NULL: memlift_last_error. */
memlift_watch *memlift_watch_new(const memlift_client *client);
/* Readable when memlift_watch_next has something. It stays the watch's. */
int memlift_watch_fd(const memlift_watch *watch);
/* Sends a call. MEMLIFT_BUSY: there is no room until an answer was taken. Call memlift_watch_next afterwards: answers may have come
 * for which the descriptor is not readable any more. */
int memlift_watch_submit(memlift_watch *watch, const char *operation, const void *data, size_t bytes,
                         const memlift_call_options *options, uint64_t *id);
/* An answer that is there; id 0: there is none now. Of a call that failed: its code, and its id. A code with id 0 is the end of
 * the session. */
int memlift_watch_next(memlift_watch *watch, uint64_t *id, memlift_answer **answer);
/* NULL is allowed. */
void memlift_watch_free(memlift_watch *watch);

/* ---- memory ---- */

/* Memory of the request pool, to be filled in place: a call with data that lies in it copies nothing, or what fits into a message.
 * Leave it as it is until the call's answer has come. */
int memlift_loan_new(const memlift_client *client, uint64_t bytes, memlift_loan **loan);
void *memlift_loan_data(const memlift_loan *loan);
/* NULL is allowed. */
void memlift_loan_free(memlift_loan *loan);

/* Where an answer lies; NULL if it has no bytes. */
const void *memlift_answer_data(const memlift_answer *answer);
uint64_t memlift_answer_bytes(const memlift_answer *answer);
/* NULL is allowed. */
void memlift_answer_free(memlift_answer *answer);

/* ---- servers ---- */

typedef struct memlift_server memlift_server;
typedef struct memlift_request memlift_request;

enum memlift_trust {
    MEMLIFT_TRUST_VIEW = 0, /* a request is read where its client put it, and could still change it */
    MEMLIFT_TRUST_COPY = 1  /* it is copied before its handler sees it */
};

/* All zero is the default; so is NULL. */
typedef struct memlift_server_options {
    uint32_t handlers;          /* operations that take long and may run at once; 0: as many as there are cores, 2 to 8 */
    uint32_t trust;             /* enum memlift_trust */
    uint64_t pool_bytes_max;    /* memory that one session may bring, per direction */
    uint64_t message_bytes_max; /* longest request or answer */
    uint32_t sessions_max;      /* sessions at most */
    uint32_t shared;            /* 1: other servers that say so may be at the address, too, and each client's session is with one of
                                 * them. Then memlift_server_start takes the address */
} memlift_server_options;

/* Binds a name, or the path of a socket file; processes of the same user may connect. MEMLIFT_ADDRESS_IN_USE. */
int memlift_server_bind(const char *address, const memlift_server_options *options, memlift_server **server);

/* What is called for a request, on a thread of the server's. It owns the request until it answers or fails it, there or later on
 * another thread; a request that is never ended keeps its client waiting. It must return: no exception, no longjmp. */
typedef void (*memlift_handler)(memlift_request *request, void *user);
/* Names an operation. user is given to each call of the handler, which several threads may make at once. MEMLIFT_BAD_ORDER: there is
 * one of that name. */
int memlift_server_register(const memlift_server *server, const char *operation, memlift_handler handler, void *user);
/* Starts threads that serve, and returns. MEMLIFT_ADDRESS_IN_USE: with shared, whoever is there shares it with nobody. */
int memlift_server_start(const memlift_server *server);
/* No new sessions and requests from now on; waits for handlers that run, unless one of them calls it. Their clients see a hang-up.
 * Not from a signal handler. */
int memlift_server_stop(const memlift_server *server);
/* Stops it, too, and waits for its threads: then its address is free. Requests that were not ended yet stay valid. NULL is allowed.
 * Not from a handler. */
void memlift_server_free(memlift_server *server);

/* Where a request lies; NULL if it has no bytes. */
const void *memlift_request_data(const memlift_request *request);
uint64_t memlift_request_bytes(const memlift_request *request);
/* Describes a request, as memlift_answer_array an answer; its data lies in the request. */
int memlift_request_array(const memlift_request *request, memlift_array *array);
/* Its value, as memlift_answer_value an answer's. */
int memlift_request_value(const memlift_request *request, memlift_value *value);
/* User that its client runs as, as the kernel said when it connected. */
uint32_t memlift_request_uid(const memlift_request *request);
/* So much of total is done, for whoever asks while the handler runs (memlift_job_state); two stores. */
int memlift_request_progress(const memlift_request *request, uint64_t done, uint64_t total);
/* Copies the answer, which may lie in the request, sends it, and ends the request, also if the client is gone. MEMLIFT_BAD_ARGUMENT:
 * data is NULL and not empty; the request goes on. */
int memlift_request_answer(memlift_request *request, const void *data, size_t bytes);
/* The same with an array. */
int memlift_request_answer_array(memlift_request *request, const memlift_array *array);
/* Fails the call with a reason, and ends the request. MEMLIFT_BAD_ARGUMENT: the reason is NULL or no UTF-8; the request goes on. */
int memlift_request_fail(memlift_request *request, const char *reason);

#ifdef __cplusplus
}
#endif

#endif
