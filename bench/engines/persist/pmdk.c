// SPDX-License-Identifier: Apache-2.0 OR MIT
// The rival on libpmemobj: transactions with N snapshots, and its example maps. One process per row.
//
//   pmdk POOL tx RANGES         an array of 16384 records of 64 bytes; a transaction adds RANGES of them and overwrites them
//   pmdk POOL map KIND          a map of its examples: btree, rbtree, hashmap (hashmap_tx), skiplist
//
// Flow   one line says how it is configured ─▶ `run SEED COUNT` ─▶ a JSON line: seconds, cpu_s, checksum · `steps` ─▶ a JSON
//        line: what one transaction executes, counted one instruction at a time. It ends when its stdin does.
// Window COUNT transactions of a `tx`, which go on where the last run ended; COUNT inserts into a new map of a new pool, whose
//        making and touching lies outside. Checksums lie outside.
// Best   PMEM_IS_PMEM_FORCE=1 (no msync), pools prefaulted, no debug library, no setjmp around a transaction
// Draw   per range: record = draw % 16384, contents = pattern(draw); per insert: key = draw, contents = pattern(key)

#include <string.h>
#include <unistd.h>

#include "workload.h"

#define RECORDS 16384
#define TX_POOL_BYTES ((size_t)64 << 20)
// Enough for a hundred thousand values of 64 bytes in any of the maps; small maps take less, so that /dev/shm may be small.
#define MAP_BYTES_MIN ((size_t)48 << 20)
#define MAP_BYTES_EACH ((size_t)2048)
// Inserts that are stepped through, and those before them.
#define STEPPED_INSERTS 16
#define BEFORE_STEPS 1000

static const char *path;

struct tx {
    PMEMobjpool *pool;
    unsigned char *records;
    unsigned ranges;
    uint64_t state;
};

static void transaction(struct tx *tx) {
    if (pmemobj_tx_begin(tx->pool, NULL, TX_PARAM_NONE)) fail("beginning a transaction");
    for (unsigned range = 0; range < tx->ranges; range++) {
        unsigned char *record = tx->records + draw(&tx->state) % RECORDS * RECORD_BYTES;
        if (pmemobj_tx_add_range_direct(record, RECORD_BYTES)) fail("adding a range");
        memlift_reference_pattern(record, RECORD_BYTES, draw(&tx->state));
    }
    pmemobj_tx_commit();
    if (pmemobj_tx_end()) fail("ending a transaction");
}

static struct tx tx_open(unsigned ranges) {
    unlink(path);
    struct tx tx = {.pool = pmemobj_create(path, "tx", TX_POOL_BYTES, 0600), .ranges = ranges};
    if (!tx.pool) fail("creating a pool");
    unlink(path);
    PMEMoid root = pmemobj_root(tx.pool, RECORDS * RECORD_BYTES);
    // The root lies 16 bytes past a cache line; records begin at one.
    root = pmemobj_root(tx.pool, RECORDS * RECORD_BYTES + RECORD_BYTES);
    uintptr_t start = (uintptr_t)pmemobj_direct(root);
    tx.records = (unsigned char *)((start + RECORD_BYTES - 1) & ~(uintptr_t)(RECORD_BYTES - 1));
    memset(tx.records, 0, RECORDS * RECORD_BYTES);
    pmemobj_persist(tx.pool, tx.records, RECORDS * RECORD_BYTES);
    return tx;
}

static void answer(double seconds, double cpu_s, uint64_t checksum) {
    printf("{\"seconds\": %.9f, \"cpu_s\": %.9f, \"checksum\": \"%016llx\"}\n", seconds, cpu_s,
           (unsigned long long)checksum);
    fflush(stdout);
}

static void tell(const struct steps *steps, uint64_t calls) {
    printf("{\"calls\": %llu, \"instructions\": %llu, \"fences\": %llu, \"loaded\": %llu, \"locked\": %llu, "
           "\"flushes\": %llu, \"streams\": %llu}\n",
           (unsigned long long)calls, (unsigned long long)steps->instructions, (unsigned long long)steps->fences,
           (unsigned long long)steps->loaded, (unsigned long long)steps->locked,
           (unsigned long long)steps->flushes, (unsigned long long)steps->streams);
    fflush(stdout);
}

static void tx_run(struct tx *tx, uint64_t seed, uint64_t count) {
    tx->state = seed;
    double cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID), start = seconds_of(CLOCK_MONOTONIC);
    for (uint64_t done = 0; done < count; done++) transaction(tx);
    double seconds = seconds_of(CLOCK_MONOTONIC) - start;
    cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
    answer(seconds, cpu_s, memlift_reference_checksum(tx->records, RECORDS * RECORD_BYTES));
}

static void map_run(const char *kind, uint64_t seed, uint64_t count) {
    struct maps *maps = maps_open(kind, path, MAP_BYTES_MIN + count * MAP_BYTES_EACH);
    uint64_t state = seed;
    double cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID), start = seconds_of(CLOCK_MONOTONIC);
    for (uint64_t done = 0; done < count; done++) maps_insert(maps, draw(&state));
    double seconds = seconds_of(CLOCK_MONOTONIC) - start;
    cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
    uint64_t found;
    uint64_t checksum = maps_checksum(maps, &found);
    if (found != count) fail("a map lost inserts");
    maps_close(maps);
    answer(seconds, cpu_s, checksum);
}

static void few_transactions(void *tx) {
    for (int turn = 0; turn < 3; turn++) transaction(tx);
}

static void one_transaction(void *tx) { transaction(tx); }

struct stepped {
    struct maps *maps;
    uint64_t state;
};

static void nothing(void *state) { (void)state; }

static void some_inserts(void *argument) {
    struct stepped *stepped = argument;
    for (int turn = 0; turn < STEPPED_INSERTS; turn++) maps_insert(stepped->maps, draw(&stepped->state));
}

static void map_steps(const char *kind, struct steps *steps) {
    struct stepped stepped = {maps_open(kind, path, MAP_BYTES_MIN), 1};
    for (int turn = 0; turn < BEFORE_STEPS; turn++) maps_insert(stepped.maps, draw(&stepped.state));
    if (count_steps(nothing, some_inserts, &stepped, steps)) fail("stepping through a process of its own");
    maps_close(stepped.maps);
}

int main(int count, char **arguments) {
    int is_tx = count == 4 && !strcmp(arguments[2], "tx"), is_map = count == 4 && !strcmp(arguments[2], "map");
    if (!is_tx && !is_map) {
        fprintf(stderr, "usage: pmdk POOL tx RANGES | pmdk POOL map KIND\n");
        return 2;
    }
    path = arguments[1];
    int on = 1;
    if (pmemobj_ctl_set(NULL, "prefault.at_create", &on)) fail("asking for prefaulted pools");
    struct tx tx = {0};
    if (is_tx) tx = tx_open((unsigned)strtoul(arguments[3], NULL, 10));
    printf("{\"about\": \"libpmemobj 1.12.1 of Debian, PMEM_IS_PMEM_FORCE=%s, prefaulted pool in /dev/shm\"}\n",
           getenv("PMEM_IS_PMEM_FORCE") ? getenv("PMEM_IS_PMEM_FORCE") : "0");
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long seed, transactions;
        struct steps steps;
        if (sscanf(line, "run %llu %llu", &seed, &transactions) == 2) {
            if (is_tx)
                tx_run(&tx, seed, transactions);
            else
                map_run(arguments[3], seed, transactions);
        } else if (!strcmp(line, "steps\n")) {
            if (is_tx && count_steps(few_transactions, one_transaction, &tx, &steps))
                fail("stepping through a process of its own");
            if (is_map) map_steps(arguments[3], &steps);
            tell(&steps, is_tx ? 1 : STEPPED_INSERTS);
        } else {
            fprintf(stderr, "pmdk: `%s` is neither `run SEED COUNT` nor `steps`\n", line);
            return 2;
        }
    }
    return 0;
}
