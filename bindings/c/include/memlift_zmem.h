/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * memlift zmem: more memory than the budget, and never more than the budget.
 *
 * Flow    memlift_zmem_enter: this process is a job with an exact total of real memory, compressed pages included ;
 *         memlift_zmem_alloc: memory whose cold pages are compressed while the total is used up ; memlift_zmem_free
 * Order   as in memlift.h: 0 is good, below 0 nothing was done, memlift_last_error() says why.
 * Owner   a block is the caller's until it is freed. What else the process has (malloc, stacks, text) counts too, but is not
 *         compressed; "memlift run" does that for whole programs without a change.
 * Threads all functions may be called from any thread. memlift_zmem_enter starts two: one compresses ahead of need, one looks
 *         at what the process holds outside of its blocks. It also handles SIGBUS and SIGSEGV for its own addresses, and
 *         hands others on to the handlers that were there.
 * Calls   the kernel does not bring pages back for itself: a system call on a block that is not pinned may fail with EFAULT.
 *         It never sees zeros or old bytes.
 *
 * Too much: when the job does not fit though all of it is compressed, it waits or ends with exit code 75; a line on stderr
 * says so.
 */
#ifndef MEMLIFT_ZMEM_H
#define MEMLIFT_ZMEM_H

#include <memlift.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All zero is the default. */
typedef struct memlift_zmem_options {
    uint64_t unused_bytes;           /* so much is kept free ahead of need; 0: a 64th of the total */
    uint64_t min_uncompressed_bytes; /* so much stays uncompressed, if there is so much */
    uint32_t pause_on_overflow;      /* not 0: wait instead of ending */
    uint32_t reserved;               /* 0 */
} memlift_zmem_options;

/* Once per process; options may be NULL. MEMLIFT_NO_MEMORY: the machine has not so much left; MEMLIFT_FILE_FAILED: the kernel
 * offers no way to handle faults; MEMLIFT_BAD_ORDER: the process is a job already. */
int memlift_zmem_enter(const char *name, uint64_t total_bytes, const memlift_zmem_options *options);
/* Changes the total while the job runs. MEMLIFT_NO_MEMORY: the machine has not so much left. */
int memlift_zmem_set_total(uint64_t total_bytes);

/* A block of zeros at a multiple of 64; it takes whole pages, so it is for large ones. MEMLIFT_NO_MEMORY. */
int memlift_zmem_alloc(size_t bytes, void **block);
/* Keeps the contents up to the smaller size; *block may be another address afterwards. MEMLIFT_NO_MEMORY: nothing changed. */
int memlift_zmem_resize(void **block, size_t bytes);
/* NULL is allowed. */
void memlift_zmem_free(void *block);

typedef struct memlift_zmem_pins memlift_zmem_pins;

/* Brings the range's pages in and keeps them until memlift_zmem_unpin: for system calls. write: not 0 if they are written to.
 * MEMLIFT_NO_MEMORY: the total has no room for all of them at once. */
int memlift_zmem_pin(const void *address, size_t bytes, int write, memlift_zmem_pins **pins);
/* NULL is allowed. */
void memlift_zmem_unpin(memlift_zmem_pins *pins);

typedef struct memlift_zmem_numbers_t {
    int64_t total_bytes;
    int64_t unused_bytes; /* of the total; below 0 while the job borrows */
    uint64_t faults;
    uint64_t pages_in;
    uint64_t pages_packed;
    uint64_t pages_spilled;
    uint64_t present_bytes; /* of blocks, uncompressed */
    uint64_t store_bytes;   /* of compressed pages */
    uint64_t mapped_bytes;  /* of blocks */
} memlift_zmem_numbers_t;

int memlift_zmem_numbers(memlift_zmem_numbers_t *numbers);

#ifdef __cplusplus
}
#endif

#endif
