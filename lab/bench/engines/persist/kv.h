// SPDX-License-Identifier: Apache-2.0 OR MIT
// A key-value store under the load of YCSB, on whatever store apps.c was compiled for: a hash map of byte keys.
//
// Scale   100,000 records, keys of 16 bytes, values of 64 bytes, which overwrite each other in place
// Mix     `kv`: SET only, as the paper's stores are loaded · `kv_mixed`: GET and SET by halves (YCSB A)
// Draw    before the window: kind, record by Zipf's law with exponent 1 (YCSB: 0.99), the value's seed
// Locks   keys are in 64 parts by hash; GET shares them

#include <stdlib.h>
#include <string.h>

#define RECORDS 100000
#define BUCKETS (1 << 17)
#define VALUE 64

struct node {
    place next;
    uint64_t expires;
    uint32_t key_bytes, value_bytes;
    uint8_t key[16], value[VALUE];
};

struct wish {
    uint64_t seed;
    uint32_t record, sets;
};

static place *kv_buckets;
static uint64_t *kv_weights;
static struct {
    struct wish *wishes;
    uint64_t room;
} kv_wishes[THREADS_MAX];

// "user" and twelve digits.
static void kv_key(uint8_t key[16], uint64_t record) {
    memcpy(key, "user", 4);
    for (int at = 15; at >= 4; at--, record /= 10) key[at] = (uint8_t)('0' + record % 10);
}

static void kv_value(uint8_t value[VALUE], uint64_t seed) {
    memcpy(value, &seed, 8);
    memlift_reference_pattern(value + 8, VALUE - 8, seed);
}

static uint64_t kv_hash(const uint8_t key[16]) {
    uint64_t words[2];
    memcpy(words, key, 16);
    return mix(mix(16, words[0]), words[1]);
}

static struct node *kv_find(uint64_t hash, const uint8_t key[16]) {
    for (place at = kv_buckets[hash % BUCKETS]; at;) {
        struct node *node = store_at(at);
        if (node->key_bytes == 16 && !memcmp(node->key, key, 16)) return node;
        at = node->next;
    }
    return NULL;
}

static void kv_fill(void) {
    kv_buckets = store_at(store_make(sizeof *kv_buckets * BUCKETS));
    for (uint64_t record = 0; record < RECORDS; record++) {
        place where = store_make_small(sizeof(struct node));
        struct node *node = store_at(where);
        *node = (struct node){.key_bytes = 16, .value_bytes = VALUE};
        kv_key(node->key, record);
        kv_value(node->value, row_state(1, record));
        place *bucket = &kv_buckets[kv_hash(node->key) % BUCKETS];
        node->next = *bucket;
        *bucket = where;
    }
    kv_weights = malloc(sizeof *kv_weights * RECORDS);
    if (!kv_weights) fail("no memory");
    uint64_t total = 0;
    for (uint64_t rank = 0; rank < RECORDS; rank++) kv_weights[rank] = total += ((uint64_t)1 << 40) / (rank + 1);
}

static void kv_wish(unsigned thread, uint64_t state, uint64_t count, unsigned sets_of_100) {
    if (kv_wishes[thread].room < count) {
        free(kv_wishes[thread].wishes);
        kv_wishes[thread].wishes = malloc(sizeof(struct wish) * count);
        kv_wishes[thread].room = count;
        if (!kv_wishes[thread].wishes) fail("no memory");
    }
    for (uint64_t turn = 0; turn < count; turn++) {
        uint32_t sets = draw(&state) % 100 < sets_of_100;
        uint64_t weight = draw(&state) % kv_weights[RECORDS - 1], low = 0, high = RECORDS - 1;
        while (low < high) {
            uint64_t middle = (low + high) / 2;
            if (kv_weights[middle] > weight)
                high = middle;
            else
                low = middle + 1;
        }
        // Neighbours in popularity are none in the store.
        kv_wishes[thread].wishes[turn] = (struct wish){draw(&state), (uint32_t)(low * 7919 % RECORDS), sets};
    }
}

static void kv_prepare(unsigned thread, uint64_t state, uint64_t count) {
    kv_wish(thread, state, count, 100);
}

static void kv_prepare_mixed(unsigned thread, uint64_t state, uint64_t count) {
    kv_wish(thread, state, count, 50);
}

static void kv_set(const uint8_t key[16], const uint8_t *value, uint32_t bytes) {
    uint64_t hash = kv_hash(key);
    uint16_t lock = (uint16_t)(1 + (hash >> 32) % PARTS);
    store_lock_write(lock);
    struct node *node = kv_find(hash, key);
    store_begin();
    if (node && node->value_bytes == bytes) {
        store_add(node->value, bytes);
        memcpy(node->value, value, bytes);
    } else {
        // Records are loaded, and their values are of one length.
        fail("a record is missing");
    }
    store_commit();
    store_unlock_one(lock);
}

static void kv_work(unsigned thread, uint64_t state, uint64_t count, struct tally *tally) {
    (void)state;
    for (uint64_t turn = 0; turn < count; turn++) {
        const struct wish *wish = &kv_wishes[thread].wishes[turn];
        uint8_t key[16], value[VALUE];
        kv_key(key, wish->record);
        if (wish->sets) {
            kv_value(value, wish->seed);
            kv_set(key, value, VALUE);
            continue;
        }
        uint64_t hash = kv_hash(key);
        uint16_t lock = (uint16_t)(1 + (hash >> 32) % PARTS);
        store_lock_read(lock);
        const struct node *node = kv_find(hash, key);
        if (!node) fail("a record is missing");
        tally->racing += memlift_reference_checksum(node->value, node->value_bytes);
        tally->settled += mix(wish->record, node->value_bytes);
        store_unlock_one(lock);
    }
}

static void kv_look(struct tally *tally) {
    for (uint64_t record = 0; record < RECORDS; record++) {
        uint8_t key[16], value[VALUE];
        uint64_t seed;
        kv_key(key, record);
        const struct node *node = kv_find(kv_hash(key), key);
        if (!node) fail("a record is missing");
        memcpy(&seed, node->value, 8);
        kv_value(value, seed);
        if (memcmp(value, node->value, VALUE)) fail("a value is torn");
        tally->settled += mix(record, node->value_bytes);
        tally->racing += mix(record, memlift_reference_checksum(node->value, VALUE));
    }
}

static const struct app app_kv = {"kv", (size_t)64 << 20, kv_fill, kv_prepare, kv_work, kv_look};
static const struct app app_kv_mixed = {"kv_mixed", (size_t)64 << 20, kv_fill, kv_prepare_mixed, kv_work, kv_look};
