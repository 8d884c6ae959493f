/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A list in a file that survives kill -9: each run puts one number in front and prints all of them.
 *
 *     cc -std=c11 -I bindings/c/include bindings/c/examples/pool.c -L target/release -lmemlift_c -o pool
 *     LD_LIBRARY_PATH=target/release ./pool .
 */
#include <memlift_persist.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct node {
    uint64_t number;
    memlift_object next;
} node;

static void must(int code, const char *what) {
    if (code != MEMLIFT_OK) {
        fprintf(stderr, "%s: %s\n", what, memlift_last_error());
        exit(1);
    }
}

int main(int count, char **arguments) {
    char path[4096], words[256];
    snprintf(path, sizeof path, "%s/numbers.pool", count > 1 ? arguments[1] : ".");
    memlift_pool *pool;
    memlift_pool_options options = {.heap_bytes = 1 << 20};
    int code = memlift_pool_create(path, &options, &pool);
    if (code == MEMLIFT_FILE_EXISTS) code = memlift_pool_open(path, NULL, &pool);
    must(code, "open");
    must(memlift_pool_guarantee(pool, NULL, words, sizeof words), "guarantee");
    printf("%s\n", words);

    const memlift_field fields[] = {{"number", 0, 8, "uint64_t"}, {"next", 8, 8, "node *"}};
    memlift_type type;
    must(memlift_pool_type(pool, "node", sizeof(node), fields, 2, &type), "type");

    for (int again = 0; again < 2; again++) {
        memlift_tx *tx;
        memlift_object first, made;
        void *data;
        const void *before;
        must(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx), "begin");
        must(memlift_tx_root(tx, type, &first), "root");
        must(memlift_tx_alloc(tx, type, 0, &made, &data), "alloc");
        node *head = data;
        head->next = first;
        if (first != 0) {
            must(memlift_tx_get(tx, type, first, &before, NULL), "get");
            head->number = ((const node *)before)->number + 1;
        }
        must(memlift_tx_set_root(tx, type, made), "set root");
        must(memlift_tx_commit(tx), "commit"); /* durable from here on */
    }

    memlift_reader *reader;
    memlift_object at;
    must(memlift_read_begin(pool, &reader), "read");
    must(memlift_read_root(reader, type, &at), "root");
    while (at != 0) {
        const void *data;
        must(memlift_read_get(reader, type, at, &data, NULL), "get");
        printf("%llu ", (unsigned long long)((const node *)data)->number);
        at = ((const node *)data)->next;
    }
    printf("\n");
    must(memlift_read_end(reader), "end");
    must(memlift_pool_close(pool), "close");
    return 0;
}
