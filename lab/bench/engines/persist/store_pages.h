// SPDX-License-Identifier: Apache-2.0 OR MIT
// The store by copies of whole pages, on the CPU: what NearPM's checkpointing and shadow paging are compared with in the paper.
//
// Flow       a transaction changes an image in memory and notes which pages it touches ─▶ commit: each of them is copied to its durable
//            place in /dev/shm (memcpy, write-back of every line, a fence): `checkpoint`: the place that it always has · `shadow`:
//            the one of two that does not hold its newest version
// Locks      one for all: two transactions may share a page, and neither must be copied with half of the other in it. Readers share it
// Flattering no table of pages and no allocator state is made durable, and nothing guards a page that is overwritten in place:
//            a crash in the middle of a copy may tear it. What is timed beside the program itself is the copying alone

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES_MAX 1024
#define UNDO_MAX 256
#define UNDO_BYTES 32768
#define CLASSES 65

static char *store_base, *store_durable;
static size_t store_bytes;
static const char *store_how;
static pthread_rwlock_t store_guard = PTHREAD_RWLOCK_INITIALIZER;

// Places of pages, and by which transaction each was touched last.
static uint8_t *store_newest;
static uint64_t *store_touched, store_number;
static uint32_t store_pages[PAGES_MAX];
static unsigned store_page_count;

// What was there, for an abort.
static struct {
    char *target;
    size_t bytes;
} store_undo[UNDO_MAX];
static char store_before[UNDO_BYTES];
static unsigned store_undo_count;
static size_t store_before_bytes;

// Free objects by size in lines, each with the next one in its first word; what a transaction took and gave.
static place store_free_of[CLASSES], store_end;
static struct {
    place at;
    unsigned size;
} store_took[64], store_gave[64];
static unsigned store_took_count, store_gave_count;

static inline void fail(const char *what) {
    fprintf(stderr, "copies of pages: %s\n", what);
    exit(1);
}

static inline void *store_at(place at) {
    return store_base + at;
}

static inline place store_make(size_t bytes) {
    place at = (store_end + 63) & ~(place)63;
    store_end = at + bytes;
    if (store_end > store_bytes) fail("the pool is full");
    return at;
}

static inline place store_make_small(size_t bytes) {
    return store_make((bytes + 63) & ~(size_t)63);
}

static inline void store_create(const char *path, const char *how, size_t bytes) {
    int shadow = !strcmp(how, "shadow");
    if (!shadow && strcmp(how, "checkpoint")) fail("neither checkpoint nor shadow");
    store_how = how;
    store_bytes = bytes;
    unlink(path);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || unlink(path) || ftruncate(file, (off_t)(bytes << shadow))) fail("creating a file");
    store_durable = mmap(NULL, bytes << shadow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    store_base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    store_newest = calloc(bytes / PAGE, 1);
    store_touched = calloc(bytes / PAGE, sizeof *store_touched);
    if (store_durable == MAP_FAILED || store_base == MAP_FAILED || !store_newest || !store_touched) fail("no memory");
    close(file);
    store_end = PAGE;
}

static inline void store_settle(void) {
    memlift_reference_copy_flush(store_durable, store_base, store_bytes);
}

static inline void store_about(void) {
    printf("the same program in C on whole pages (%s), without offload: memcpy, %s, a fence for each page that a transaction touched, one "
           "transaction at a time, no table of pages, %zu MiB of image in memory",
           store_how, memlift_reference_flush_name(), store_bytes >> 20);
}

static inline void store_lock(const uint16_t *locks, unsigned count) {
    (void)locks, (void)count;
    pthread_rwlock_wrlock(&store_guard);
}

static inline void store_unlock(const uint16_t *locks, unsigned count) {
    (void)locks, (void)count;
    pthread_rwlock_unlock(&store_guard);
}

static inline void store_lock_write(unsigned lock) {
    (void)lock;
    pthread_rwlock_wrlock(&store_guard);
}

static inline void store_lock_read(unsigned lock) {
    (void)lock;
    pthread_rwlock_rdlock(&store_guard);
}

static inline void store_unlock_one(unsigned lock) {
    (void)lock;
    pthread_rwlock_unlock(&store_guard);
}

static inline void store_begin(void) {
    store_number++;
    store_page_count = store_undo_count = store_took_count = store_gave_count = 0;
    store_before_bytes = 0;
}

static inline void store_touch(place at, size_t bytes) {
    for (place page = at / PAGE; page <= (at + bytes - 1) / PAGE; page++) {
        if (store_touched[page] == store_number) continue;
        store_touched[page] = store_number;
        if (store_page_count == PAGES_MAX) fail("a transaction of too many pages");
        store_pages[store_page_count++] = (uint32_t)page;
    }
}

static inline void store_add(void *target, size_t bytes) {
    if (store_undo_count == UNDO_MAX || store_before_bytes + bytes > UNDO_BYTES) fail("a transaction of too many ranges");
    memcpy(store_before + store_before_bytes, target, bytes);
    store_undo[store_undo_count].target = target;
    store_undo[store_undo_count++].bytes = bytes;
    store_before_bytes += bytes;
    store_touch((place)((char *)target - store_base), bytes);
}

static inline place store_alloc(size_t bytes) {
    unsigned size = (unsigned)((bytes + 63) / 64);
    if (size >= CLASSES || store_took_count == 64) fail("too large, or too many objects");
    place at = store_free_of[size];
    if (at)
        memcpy(&store_free_of[size], store_at(at), sizeof at);
    else
        at = store_make((size_t)size * 64);
    store_took[store_took_count].at = at;
    store_took[store_took_count++].size = size;
    store_touch(at, bytes);
    return at;
}

static inline void store_put(place at, unsigned size) {
    memcpy(store_at(at), &store_free_of[size], sizeof at);
    store_free_of[size] = at;
}

static inline void store_free(place at, size_t bytes) {
    if (store_gave_count == 64) fail("too many objects");
    store_gave[store_gave_count].at = at;
    store_gave[store_gave_count++].size = (unsigned)((bytes + 63) / 64);
}

static inline void store_commit(void) {
    int shadow = store_how[0] == 's';
    for (unsigned at = 0; at < store_page_count; at++) {
        size_t page = store_pages[at];
        if (shadow) store_newest[page] ^= 1;
        char *target = store_durable + store_newest[page] * store_bytes + page * PAGE;
        memlift_reference_copy_flush(target, store_base + page * PAGE, PAGE);
    }
    for (unsigned at = 0; at < store_gave_count; at++) store_put(store_gave[at].at, store_gave[at].size);
}

static inline void store_abort(void) {
    while (store_undo_count-- > 0) {
        store_before_bytes -= store_undo[store_undo_count].bytes;
        memcpy(store_undo[store_undo_count].target, store_before + store_before_bytes, store_undo[store_undo_count].bytes);
    }
    for (unsigned at = 0; at < store_took_count; at++) store_put(store_took[at].at, store_took[at].size);
}
