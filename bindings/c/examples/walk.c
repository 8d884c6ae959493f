/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Prices by time on a memory node: put in, ranged, averaged where they lie.
 *
 *     memlift node --memory 64M --listen shm:prices &
 *     cc -std=c11 -I bindings/c/include bindings/c/examples/walk.c -L target/release -lmemlift_c -o walk
 *     LD_LIBRARY_PATH=target/release ./walk shm:prices
 */
#include <memlift_traverse.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void must(int code, const char *what) {
    if (code != MEMLIFT_OK) {
        fprintf(stderr, "%s: %s\n", what, memlift_last_error());
        exit(1);
    }
}

int main(int count, char **arguments) {
    const char *node = count > 1 ? arguments[1] : "127.0.0.1:7700";
    memlift_walks *walks;
    must(memlift_walks_connect(&node, 1, NULL, &walks), "connect");

    memlift_ordered *prices;
    must(memlift_ordered_create(walks, 8, &prices), "create");
    for (uint64_t time = 0; time < 100; time++) {
        int64_t price = (int64_t)(time * 7 % 50);
        must(memlift_ordered_insert(prices, time, &price, sizeof price, NULL), "insert");
    }

    struct {
        uint64_t time;
        int64_t price;
    } records[8];
    size_t found;
    must(memlift_ordered_range(prices, 10, 99, records, sizeof records, &found), "range");
    for (size_t index = 0; index < found; index++)
        printf("%" PRIu64 ": %" PRId64 "\n", records[index].time, records[index].price);

    memlift_aggregate totals; /* one walk, however many prices there are */
    must(memlift_ordered_aggregate(prices, 0, 99, &totals), "aggregate");
    printf("%" PRIu64 " prices, %.2f on average\n", totals.count, (double)totals.sum / (double)totals.count);

    memlift_ordered_close(prices);
    memlift_walks_close(walks);
    return 0;
}
