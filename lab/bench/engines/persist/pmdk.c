// SPDX-License-Identifier: Apache-2.0 OR MIT
// The rival on libpmemobj: transactions with N snapshots, and its example maps. One process per row.
//
//   pmdk POOL tx RANGES         an array of 16384 records of 64 bytes; a transaction adds RANGES of them and overwrites them
//   pmdk POOL map KIND          a map of its examples: btree, rbtree, hashmap (hashmap_tx), skiplist
//
// Flow   one line says how it is configured ─▶ `run SEED COUNT` ─▶ a JSON line: seconds, cpu_s, checksum · `step` ─▶ SIGSTOP,
//        SIGSTOP, some transactions, SIGSTOP, for whoever traces and steps through them ─▶ a JSON line: how many they were.
//        It ends when its stdin does.
// Window COUNT transactions of a `tx`, which go on where the last run ended; COUNT inserts into a new map of a new pool, whose
//        making and touching lies outside. Checksums lie outside.
// Best   PMEM_IS_PMEM_FORCE=1 (no msync), pools prefaulted, no debug library, no setjmp around a transaction
// Draw   per range: record = draw % 16384, contents = pattern(draw); per insert: key = draw, contents = pattern(key)

#include <signal.h>
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
    // An object need not begin at a cache line; records do.
    PMEMoid root = pmemobj_root(tx.pool, RECORDS * RECORD_BYTES + RECORD_BYTES);
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

// The stops are this process's own, so only a tracer may ask for them.
static void tell(uint64_t transactions) {
    printf("{\"transactions\": %llu}\n", (unsigned long long)transactions);
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

static void tx_step(struct tx *tx) {
    for (int turn = 0; turn < 3; turn++) transaction(tx);
    raise(SIGSTOP);
    raise(SIGSTOP);
    transaction(tx);
    raise(SIGSTOP);
    tell(1);
}

static void map_step(const char *kind) {
    struct maps *maps = maps_open(kind, path, MAP_BYTES_MIN);
    uint64_t state = 1;
    for (int turn = 0; turn < BEFORE_STEPS; turn++) maps_insert(maps, draw(&state));
    raise(SIGSTOP);
    raise(SIGSTOP);
    for (int turn = 0; turn < STEPPED_INSERTS; turn++) maps_insert(maps, draw(&state));
    raise(SIGSTOP);
    maps_close(maps);
    tell(STEPPED_INSERTS);
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
        if (sscanf(line, "run %llu %llu", &seed, &transactions) == 2) {
            if (is_tx)
                tx_run(&tx, seed, transactions);
            else
                map_run(arguments[3], seed, transactions);
        } else if (!strcmp(line, "step\n")) {
            if (is_tx)
                tx_step(&tx);
            else
                map_step(arguments[3]);
        } else {
            fprintf(stderr, "pmdk: `%s` is neither `run SEED COUNT` nor `step`\n", line);
            return 2;
        }
    }
    return 0;
}
