/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Commits for ever, and says so; or checks what is there. Arguments: the pool, "run" or "check", a durability, a domain.
 *
 * Transaction n makes a node (n, a text of n's own length) in front of the list, changes the node before it, writes n to a
 * counter by another primitive in turn, and frees the node that is 50 behind. After its commit a line with n is printed.
 * "check" prints the last n, or what is wrong.
 */
#include <memlift_persist.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct head {
    uint64_t last;
    memlift_object first;
    memlift_object counter; /* a blob: n everywhere */
} head;

typedef struct node {
    uint64_t number, followed; /* followed: the number of the node in front of it, or 0 */
    memlift_object next;
    char text[];
} node;

enum { KEPT = 50, COUNTER_WORDS = 3000 };

static memlift_type of_head, of_node, of_counter;

static void must(int code, const char *what) {
    if (code != MEMLIFT_OK) {
        printf("%s: %s\n", what, memlift_last_error());
        exit(1);
    }
}

static void wrong(const char *what) {
    printf("wrong: %s\n", what);
    exit(1);
}

static uint64_t text_bytes(uint64_t n) {
    return n * 37 % 900 + 1;
}

static void once(memlift_pool *pool, int durability) {
    memlift_tx *tx;
    memlift_object root, made, before;
    void *data;
    const void *seen;
    must(memlift_tx_begin(pool, durability, &tx), "begin");
    must(memlift_tx_root(tx, of_head, &root), "root");
    if (root == 0) {
        must(memlift_tx_alloc(tx, of_head, 0, &root, &data), "head");
        must(memlift_tx_alloc(tx, of_counter, COUNTER_WORDS * 8, &((head *)data)->counter, NULL), "counter");
        must(memlift_tx_set_root(tx, of_head, root), "set root");
    }
    must(memlift_nearpm_undolog_create(tx, of_head, root, 0, sizeof(head), &data), "change head");
    head *top = data;
    uint64_t n = ++top->last;
    before = top->first;
    must(memlift_tx_alloc(tx, of_node, sizeof(node) + text_bytes(n), &made, &data), "node");
    node *fresh = data;
    fresh->number = n;
    fresh->next = before;
    memset(fresh->text, (int)('a' + n % 26), text_bytes(n));
    top->first = made;
    if (before != 0) must(memlift_tx_write(tx, of_node, before, 8, &n, 8), "followed");
    memlift_object at = before, previous = made;
    for (int i = 1; i < KEPT && at != 0; i++) {
        must(memlift_tx_get(tx, of_node, at, &seen, NULL), "walk");
        previous = at;
        at = ((const node *)seen)->next;
    }
    if (at != 0) {
        memlift_object none = 0;
        must(memlift_tx_write(tx, of_node, previous, 16, &none, 8), "cut");
        must(memlift_tx_free(tx, of_node, at), "free");
    }
    if (n % 3 == 0) { /* a new page */
        memlift_object copy;
        must(memlift_nearpm_shadowcpy(tx, of_counter, top->counter, &copy, &data), "shadow");
        must(memlift_tx_free(tx, of_counter, top->counter), "free the old page");
        top->counter = copy;
    } else { /* in place */
        must(memlift_nearpm_ckpoint_create(tx, of_counter, top->counter, 0, COUNTER_WORDS * 8, &data), "checkpoint");
    }
    for (int i = 0; i < COUNTER_WORDS; i++) ((uint64_t *)data)[i] = n;
    must(memlift_nearpm_commit_log(tx), "commit");
    if (durability == MEMLIFT_BUFFERED) {
        if (n % 16 != 0) return;
        must(memlift_pool_sync(pool), "sync");
    }
    char line[32];
    int bytes = snprintf(line, sizeof line, "%llu\n", (unsigned long long)n);
    if (write(1, line, (size_t)bytes) != bytes) exit(1);
}

static void check(memlift_pool *pool) {
    memlift_reader *reader;
    memlift_object root;
    const void *data;
    uint64_t bytes, count = 0;
    must(memlift_read_begin(pool, &reader), "read");
    must(memlift_read_root(reader, of_head, &root), "root");
    if (root == 0) {
        printf("0\n");
        exit(0);
    }
    must(memlift_read_get(reader, of_head, root, &data, NULL), "head");
    const head *top = data;
    uint64_t n = top->last, expected = n;
    must(memlift_read_get(reader, of_counter, top->counter, &data, &bytes), "counter");
    if (bytes != COUNTER_WORDS * 8) wrong("the counter's length");
    for (int i = 0; i < COUNTER_WORDS; i++)
        if (((const uint64_t *)data)[i] != n) wrong("the counter");
    for (memlift_object at = top->first; at != 0; expected--, count++) {
        must(memlift_read_get(reader, of_node, at, &data, &bytes), "node");
        const node *one = data;
        if (one->number != expected || bytes != sizeof(node) + text_bytes(expected)) wrong("a node");
        if (one->followed != (expected == n ? 0 : expected + 1)) wrong("who follows");
        for (uint64_t i = 0; i < text_bytes(expected); i++)
            if (one->text[i] != (char)('a' + expected % 26)) wrong("a text");
        at = one->next;
    }
    if (count != (n < KEPT ? n : KEPT)) wrong("the list's length");
    must(memlift_read_end(reader), "end");
    printf("%llu\n", (unsigned long long)n);
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    memlift_pool *pool;
    memlift_pool_options options = {.heap_bytes = 1 << 20, .lane_bytes = 128 << 10, .domain = (uint32_t)atoi(arguments[4])};
    must(memlift_nearpm_init_device(arguments[1], &options, &pool), "open");
    must(memlift_pool_type(pool, "head", sizeof(head), NULL, 0, &of_head), "type");
    must(memlift_pool_type(pool, "node", 0, NULL, 0, &of_node), "type");
    must(memlift_pool_type(pool, "counter", 0, NULL, 0, &of_counter), "type");
    if (strcmp(arguments[2], "run") == 0)
        for (;;) once(pool, atoi(arguments[3]));
    check(pool);
    must(memlift_pool_close(pool), "close");
    return 0;
}
