/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every function of memlift_traverse.h, against a node whose place is the second argument. */
#include <memlift_traverse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must_be(int line, int good, const char *what) {
    if (!good) {
        printf("line %d: %s (%s)\n", line, what, memlift_last_error());
        exit(1);
    }
}
#define CHECK(condition) must_be(__LINE__, (condition), #condition)
#define IS(code, call) must_be(__LINE__, (call) == (code), #call)
#define GOOD(call) IS(MEMLIFT_OK, call)

struct cell {
    uint64_t next, key;
};

/* Goes to the end of a chain of cells: r4 = next; scratch = key; 0: done. */
static const uint64_t LAST[] = {
    0x0000000000001479, /* r4 = *(u64 *)(r1 + 0) */
    0x0000000000081579, /* r5 = *(u64 *)(r1 + 8) */
    0x000000000000527b, /* *(u64 *)(r2 + 0) = r5 */
    0x0000000000030415, /* if r4 == 0 goto +3 */
    0x000000000000437b, /* *(u64 *)(r3 + 0) = r4 */
    0x00000000000000b7, /* r0 = 0 */
    0x0000000000000095, /* exit */
    0x00000001000000b7, /* r0 = 1 */
    0x0000000000000095, /* exit */
};

static void walks_of(memlift_walks *walks) {
    memlift_walk_program *last, *find, *none;
    GOOD(memlift_walk_program_new("last", LAST, sizeof LAST, 64, &last));
    GOOD(memlift_walk_program_shipped("hash_find", &find));
    IS(MEMLIFT_BAD_PROGRAM, memlift_walk_program_shipped("nothing", &none));
    IS(MEMLIFT_BAD_PROGRAM, memlift_walk_program_new("short", LAST, 16, 64, &none));
    CHECK(strstr(memlift_last_error(), "instruction") != NULL);
    IS(MEMLIFT_BAD_PROGRAM, memlift_walk_program_object("object", LAST, sizeof LAST, 64, &none));
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walk_program_new(NULL, LAST, sizeof LAST, 64, &none));
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walk_program_new("x", NULL, 8, 64, &none));

    enum { CELLS = 50 };
    uint64_t base;
    struct cell cells[CELLS], read[CELLS];
    GOOD(memlift_walks_alloc(walks, sizeof cells + 256, &base));
    for (uint64_t index = 0; index < CELLS; index++) {
        cells[index].next = index + 1 < CELLS ? base + (index + 1) * sizeof(struct cell) : 0;
        cells[index].key = 1000 + index;
    }
    GOOD(memlift_walks_write(walks, base, cells, sizeof cells));
    GOOD(memlift_walks_read(walks, base, read, sizeof read));
    CHECK(memcmp(cells, read, sizeof cells) == 0);

    uint64_t pad[8] = {7};
    memlift_walked walked;
    GOOD(memlift_walk(walks, last, base, pad, sizeof pad, NULL, 0, &walked));
    CHECK(pad[0] == 1000 + CELLS - 1 && pad[1] == 0);
    CHECK(walked.outcome == MEMLIFT_WALK_DONE && walked.hops == CELLS - 1 && walked.result_bytes == 0);
    GOOD(memlift_walk(walks, last, base, NULL, 0, NULL, 0, NULL));
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walk(walks, last, base, pad, 65, NULL, 0, NULL));
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walk(NULL, last, base, pad, 8, NULL, 0, NULL));
    IS(MEMLIFT_NO_ADDRESS, memlift_walk(walks, last, 4096, pad, 8, NULL, 0, NULL));

    memlift_walk_request many[CELLS];
    uint64_t keys[CELLS];
    for (uint64_t index = 0; index < CELLS; index++) {
        keys[index] = 0;
        many[index] = (memlift_walk_request){
            .program = last, .start = index == 3 ? 4096 : base + index * sizeof(struct cell),
            .scratch = &keys[index], .scratch_bytes = 8};
    }
    GOOD(memlift_walk_many(walks, many, CELLS));
    for (uint32_t index = 0; index < CELLS; index++) {
        CHECK(many[index].code == (index == 3 ? MEMLIFT_NO_ADDRESS : MEMLIFT_OK));
        CHECK(index == 3 || (keys[index] == 1000 + CELLS - 1 && many[index].walked.hops == CELLS - 1 - index));
    }

    uint64_t tickets[300];
    for (uint64_t index = 0; index < 300; index++)
        GOOD(memlift_walk_submit(walks, last, base + index % CELLS * sizeof(struct cell), NULL, 0, &tickets[index]));
    for (uint64_t index = 0; index < 300; index++) {
        int code;
        while ((code = memlift_walk_poll(walks, tickets[index], 100, pad, 8, NULL, 0, &walked)) == MEMLIFT_MORE)
            ;
        CHECK(code == MEMLIFT_OK && pad[0] == 1000 + CELLS - 1 && walked.hops == CELLS - 1 - index % CELLS);
    }
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walk_poll(walks, tickets[0], 0, pad, 8, NULL, 0, &walked));
    GOOD(memlift_walk_submit(walks, last, base, NULL, 0, tickets));
    GOOD(memlift_walk_abandon(walks, tickets[0]));
    GOOD(memlift_walks_free(walks, base, sizeof cells + 256));
    memlift_walk_program_free(last);
    memlift_walk_program_free(find);
    memlift_walk_program_free(NULL);
}

static void hashes_of(memlift_walks *walks) {
    memlift_hash *map, *again;
    memlift_hash_handle handle;
    GOOD(memlift_hash_create(walks, 100, &map));
    GOOD(memlift_hash_where(map, &handle));
    CHECK(handle.log2 == 7);
    GOOD(memlift_hash_open(walks, handle, &again));
    IS(MEMLIFT_BAD_ARGUMENT, memlift_hash_open(walks, (memlift_hash_handle){handle.heads, 99, 0, 0, 0}, &again));
    int flag;
    uint64_t before;
    size_t length;
    char value[64];
    for (uint64_t key = 0; key < 200; key++) {
        uint64_t twice = key * 2;
        GOOD(memlift_hash_insert(map, (memlift_key){key, NULL, 0}, &twice, 8, &flag));
        CHECK(flag);
    }
    GOOD(memlift_hash_insert(map, (memlift_key){5, NULL, 0}, "other", 5, &flag));
    CHECK(!flag);
    GOOD(memlift_hash_get(again, (memlift_key){5, NULL, 0}, value, sizeof value, &length, &flag));
    CHECK(flag && length == 5 && memcmp(value, "other", 5) == 0);
    IS(MEMLIFT_TARGET_TOO_SMALL, memlift_hash_get(again, (memlift_key){5, NULL, 0}, value, 4, &length, &flag));
    CHECK(flag && length == 5);
    GOOD(memlift_hash_get(again, (memlift_key){5000, NULL, 0}, value, sizeof value, NULL, &flag));
    CHECK(!flag);
    GOOD(memlift_hash_add(again, 6, 3, &before, &flag));
    CHECK(flag && before == 12);
    GOOD(memlift_hash_add(again, 6, (uint64_t)-5, &before, &flag));
    CHECK(flag && before == 15);
    IS(MEMLIFT_BAD_ARGUMENT, memlift_hash_add(again, 6, (uint64_t)INT64_MAX - 3, &before, &flag));
    GOOD(memlift_hash_add(again, 6, 0, &before, &flag));
    CHECK(flag && before == 10);
    GOOD(memlift_hash_add(again, 6000, 3, &before, &flag));
    CHECK(!flag);
    GOOD(memlift_hash_delete(map, (memlift_key){7, NULL, 0}, &flag));
    CHECK(flag);
    GOOD(memlift_hash_delete(map, (memlift_key){7, NULL, 0}, &flag));
    CHECK(!flag);
    memlift_key named = {0, "a name", 6};
    GOOD(memlift_hash_insert(map, named, NULL, 0, NULL));
    GOOD(memlift_hash_get(map, named, NULL, 0, &length, &flag));
    CHECK(flag && length == 0);
    IS(MEMLIFT_BAD_ARGUMENT, memlift_hash_insert(map, (memlift_key){0, value, 0}, NULL, 0, NULL));
    IS(MEMLIFT_BAD_ARGUMENT, memlift_hash_get(NULL, named, NULL, 0, &length, &flag));
    memlift_hash_close(map);
    memlift_hash_close(again);
    memlift_hash_close(NULL);
}

static void ordered_of(memlift_walks *walks) {
    memlift_ordered *map, *again;
    memlift_ordered_handle handle;
    IS(MEMLIFT_BAD_ARGUMENT, memlift_ordered_create(walks, 241, &map));
    GOOD(memlift_ordered_create(walks, 8, &map));
    GOOD(memlift_ordered_where(map, &handle));
    GOOD(memlift_ordered_open(walks, handle, &again));
    IS(MEMLIFT_BAD_ARGUMENT, memlift_ordered_open(walks, (memlift_ordered_handle){handle.cell, 0, 0, 0, 0}, &again));
    int flag;
    int64_t value;
    for (uint64_t key = 0; key < 300; key++) {
        value = (int64_t)key - 100;
        GOOD(memlift_ordered_insert(map, key * 3, &value, 8, &flag));
        CHECK(flag);
    }
    GOOD(memlift_ordered_get(again, 30, &value, 8, &flag));
    CHECK(flag && value == -90);
    GOOD(memlift_ordered_get(again, 31, &value, 8, &flag));
    CHECK(!flag);
    IS(MEMLIFT_BAD_ARGUMENT, memlift_ordered_insert(map, 1, &value, 7, NULL));
    struct {
        uint64_t key;
        int64_t value;
    } records[10];
    size_t count;
    GOOD(memlift_ordered_range(again, 4, 20, records, sizeof records, &count));
    CHECK(count == 5 && records[0].key == 6 && records[4].key == 18 && records[4].value == -94);
    GOOD(memlift_ordered_range(again, 0, UINT64_MAX, records, sizeof records, &count));
    CHECK(count == 10 && records[9].key == 27);
    GOOD(memlift_ordered_range(again, 9, 8, records, sizeof records, &count));
    CHECK(count == 0);
    memlift_aggregate totals;
    GOOD(memlift_ordered_aggregate(again, 0, 897, &totals));
    CHECK(totals.count == 300 && totals.sum == 300 * 299 / 2 - 300 * 100 && totals.min == -100 && totals.max == 199);
    GOOD(memlift_ordered_delete(map, 30, &flag));
    CHECK(flag);
    GOOD(memlift_ordered_delete(map, 30, &flag));
    CHECK(!flag);
    memlift_ordered_close(again);
    memlift_ordered_close(map);
    memlift_ordered_close(NULL);
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    const char *node = arguments[2], *nowhere = "shm:no-such-ring-here", *nonsense = "nonsense";
    memlift_walks *walks, *none;
    IS(MEMLIFT_NOT_CONNECTED, memlift_walks_connect(&nowhere, 1, NULL, &none));
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walks_connect(&nonsense, 1, NULL, &none));
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walks_connect(&node, 0, NULL, &none));
    IS(MEMLIFT_NOT_CONNECTED, memlift_walks_connect_map("file:/no/such/map.toml", NULL, &none));
    memlift_walk_options options = {.deadline_ms = 30000};
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walks_connect(&node, 1, &options, &none));
    options = (memlift_walk_options){.reads = MEMLIFT_READS_STALE_OK + 1};
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walks_connect(&node, 1, &options, &none));
    options = (memlift_walk_options){.reserved = {0, 0, 1}};
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walks_connect(&node, 1, &options, &none));
    options = (memlift_walk_options){.reads = MEMLIFT_READS_STALE_OK};
    GOOD(memlift_walks_connect(&node, 1, &options, &walks));
    uint64_t address;
    IS(MEMLIFT_BAD_ARGUMENT, memlift_walks_alloc(walks, 64, &address));
    CHECK(strstr(memlift_last_error(), "stale_ok") != NULL);
    memlift_walks_close(walks);
    options = (memlift_walk_options){.deadline_ms = 5000, .window = 32, .reads = MEMLIFT_READS_CONFIRMED};
    GOOD(memlift_walks_connect(&node, 1, &options, &walks));
    IS(MEMLIFT_NODE_FULL, memlift_walks_alloc(walks, (uint64_t)1 << 40, &address));
    walks_of(walks);
    hashes_of(walks);
    ordered_of(walks);
    memlift_walks_close(walks);
    memlift_walks_close(NULL);
    GOOD(memlift_walks_connect_map(arguments[3], NULL, &walks));
    memlift_hash *map;
    GOOD(memlift_hash_create(walks, 10, &map));
    memlift_walks_close(walks); /* the map has it still */
    GOOD(memlift_hash_insert(map, (memlift_key){1, NULL, 0}, "x", 1, NULL));
    memlift_hash_close(map);
    printf("all as the header says\n");
    return 0;
}
