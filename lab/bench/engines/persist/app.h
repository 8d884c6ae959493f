// SPDX-License-Identifier: Apache-2.0 OR MIT
// An application program of the rivals: what apps.c runs on one thread or many.
//
// Sum     what every order of the threads leaves is in `settled`; what depends on it is in `racing`, and counts where one thread ran
#ifndef MEMLIFT_APP_H
#define MEMLIFT_APP_H

#include "store.h"

struct tally {
    uint64_t settled, racing, aborted;
};

struct app {
    const char *name;
    size_t pool_bytes;
    // The tables, in a new store.
    void (*fill)(void);
    // What a thread's next run needs, outside the window; may be NULL.
    void (*prepare)(unsigned thread, uint64_t state, uint64_t count);
    // `count` transactions.
    void (*work)(unsigned thread, uint64_t state, uint64_t count, struct tally *tally);
    // Of all that is there.
    void (*look)(struct tally *tally);
};

#define THREADS_MAX 16
// Parts of a table that are locked apart.
#define PARTS 64

static inline uint64_t mix(uint64_t hash, uint64_t word) {
    return spread(hash ^ word);
}

// Of a row that is there before the first run.
static inline uint64_t row_state(uint64_t table, uint64_t row) {
    return table << 40 | row;
}

#endif
