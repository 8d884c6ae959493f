// SPDX-License-Identifier: Apache-2.0 OR MIT
// What the application programs ask of whoever keeps their bytes. Two do: libpmemobj (store_pmemobj.h), and copies of whole pages
// (store_pages.h), by -DSTORE_PAGES. Both are included, so that a call costs nothing that the store does not need.
//
// Place   bytes from the pool's start; 0 points to nothing. store_at(place) is where it is now
// Filling store_make, plain stores, then once store_settle: all of it is durable. No transaction before that
// Change  locks ─▶ store_begin ─▶ store_add before each store to what is there already, store_alloc, store_free ─▶ store_commit: durable
//         when it returns, or store_abort: nothing happened ─▶ locks go
// Locks   numbered, ascending, each once; STORE_LOCKS of them
#ifndef MEMLIFT_STORE_H
#define MEMLIFT_STORE_H

#include "draw.h"

typedef uint64_t place;

#define STORE_LOCKS 128
// Most locks that one transaction takes.
#define STORE_HELD_MAX 16

#ifdef STORE_PAGES
#include "store_pages.h"
#else
#include "store_pmemobj.h"
#endif

#endif
