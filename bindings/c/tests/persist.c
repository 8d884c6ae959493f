/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Calls every function of memlift_persist.h, with what it is for and with what it refuses. A line of output per failure; the
 * last line says that there was none. The argument is a folder.
 */
#include <memlift_persist.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures = 0;

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            failures++;                                                                          \
            printf("%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, memlift_last_error()); \
        }                                                                                        \
    } while (0)

typedef struct account {
    uint64_t owner, balance;
    uint8_t note[16];
} account;

static const memlift_field FIELDS[] = {
    {"owner", 0, 8, "uint64_t"}, {"balance", 8, 8, "uint64_t"}, {"note", 16, 16, NULL}};
static memlift_pool *pool;
static memlift_type type, blob;
static char path[4096], other[4096], copy[4200];

static account *changed(memlift_tx *tx, memlift_object object) {
    void *data = NULL;
    CHECK(memlift_tx_add_range(tx, type, object, 0, sizeof(account), &data) == MEMLIFT_OK);
    return data;
}

static uint64_t balance(memlift_object object) {
    memlift_reader *reader;
    const void *data = NULL;
    uint64_t bytes = 0, found;
    CHECK(memlift_read_begin(pool, &reader) == MEMLIFT_OK);
    CHECK(memlift_read_get(reader, type, object, &data, &bytes) == MEMLIFT_OK && bytes == sizeof(account));
    found = ((const account *)data)->balance;
    CHECK(memlift_read_end(reader) == MEMLIFT_OK);
    return found;
}

static void opening(uint32_t domain) {
    memlift_pool_options options = {.heap_bytes = 1 << 20, .max_bytes = 8 << 20, .lane_bytes = 256 << 10, .domain = domain};
    memlift_pool_options wrong = options;
    memlift_pool *twice = (memlift_pool *)1;
    memlift_pool_guarantee_t guarantee;
    char words[300], few[9];
    CHECK(memlift_pool_open(path, &options, &pool) == MEMLIFT_FILE_FAILED && pool == NULL);
    CHECK(memlift_pool_create(path, &options, &pool) == MEMLIFT_OK && pool != NULL);
    CHECK(memlift_pool_create(path, &options, &twice) == MEMLIFT_FILE_EXISTS && twice == NULL);
    CHECK(memlift_pool_open(path, &options, &twice) == MEMLIFT_POOL_IN_USE);
    CHECK(strstr(memlift_last_error(), "one owner") != NULL);
    CHECK(memlift_pool_open(NULL, NULL, &twice) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_pool_open(path, NULL, NULL) == MEMLIFT_BAD_ARGUMENT);
    wrong.mechanism = 9;
    CHECK(memlift_pool_create(other, &wrong, &twice) == MEMLIFT_BAD_ARGUMENT);
    wrong = options;
    wrong.domain = 3;
    CHECK(memlift_pool_create(other, &wrong, &twice) == MEMLIFT_BAD_ARGUMENT);
    FILE *file = fopen(other, "w");
    for (int i = 0; i < 20000; i++) fprintf(file, "no pool at all ");
    fclose(file);
    CHECK(memlift_pool_open(other, NULL, &twice) == MEMLIFT_NOT_A_POOL);
    remove(other);
    CHECK(memlift_pool_guarantee(pool, &guarantee, words, sizeof words) == MEMLIFT_OK);
    CHECK(guarantee.domain == domain && strstr(words, "survives") != NULL);
    CHECK(memlift_pool_guarantee(pool, NULL, few, sizeof few) == MEMLIFT_OK && strcmp(few, "survives") == 0);
    CHECK(memlift_pool_guarantee(NULL, NULL, NULL, 0) == MEMLIFT_BAD_ARGUMENT);
}

static void types(void) {
    memlift_type again;
    const memlift_field outside[] = {{"x", 30, 8, NULL}};
    const memlift_field nameless[] = {{NULL, 0, 8, NULL}};
    CHECK(memlift_pool_type(pool, "account", sizeof(account), FIELDS, 3, &type) == MEMLIFT_OK);
    CHECK(memlift_pool_type(pool, "account", sizeof(account), FIELDS, 3, &again) == MEMLIFT_OK && again.id == type.id);
    CHECK(memlift_pool_type(pool, "account", sizeof(account), FIELDS, 2, &again) == MEMLIFT_OK && again.id != type.id);
    CHECK(memlift_pool_type(pool, "blob", 0, NULL, 0, &blob) == MEMLIFT_OK);
    CHECK(memlift_pool_type(pool, "", 8, NULL, 0, &again) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_pool_type(pool, "x", 32, outside, 1, &again) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_pool_type(pool, "x", 32, nameless, 1, &again) == MEMLIFT_BAD_ARGUMENT);
    const memlift_field broken[] = {{"x", 0, 8, "a\ttype"}};
    CHECK(memlift_pool_type(pool, "x", 32, broken, 1, &again) == MEMLIFT_BAD_ARGUMENT);
    const memlift_field untyped[] = {{"owner", 0, 8, NULL}, {"balance", 8, 8, NULL}, {"note", 16, 16, NULL}};
    CHECK(memlift_pool_type(pool, "account", sizeof(account), untyped, 3, &again) == MEMLIFT_OK && again.id == type.id);
    CHECK(memlift_pool_type(pool, "x", 32, NULL, 1, &again) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_pool_type(pool, NULL, 32, NULL, 0, &again) == MEMLIFT_BAD_ARGUMENT);
}

static void *elsewhere(void *tx) {
    static int code;
    code = memlift_tx_commit(tx);
    CHECK(code == MEMLIFT_BAD_ORDER && memlift_tx_abort(tx) == MEMLIFT_BAD_ORDER);
    return NULL;
}

static memlift_object transactions(void) {
    memlift_tx *tx, *second;
    memlift_pool *spare;
    memlift_reader *reader;
    memlift_object object, root, gone;
    memlift_type more;
    const void *seen;
    void *data;
    uint64_t bytes;
    CHECK(memlift_tx_begin(pool, 7, &tx) == MEMLIFT_BAD_ARGUMENT && tx == NULL);
    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &second) == MEMLIFT_BAD_ORDER && second == NULL);
    CHECK(memlift_read_begin(pool, &reader) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_pool_type(pool, "late", 8, NULL, 0, &more) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_pool_close(pool) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_tx_root(tx, type, &root) == MEMLIFT_OK && root == 0);
    CHECK(memlift_tx_alloc(tx, type, 9, &object, NULL) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_tx_alloc(tx, blob, UINT64_MAX, &object, NULL) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_tx_alloc(tx, type, 0, &object, &data) == MEMLIFT_OK && object % 16 == 0);
    ((account *)data)->balance = 100;
    CHECK(memlift_tx_set_root(tx, type, object) == MEMLIFT_OK);
    pthread_t thread;
    pthread_create(&thread, NULL, elsewhere, tx);
    pthread_join(thread, NULL);
    CHECK(memlift_tx_commit(tx) == MEMLIFT_OK);
    CHECK(balance(object) == 100);

    CHECK(memlift_tx_begin(pool, MEMLIFT_GROUP, &tx) == MEMLIFT_OK);
    changed(tx, object)->balance = 5;
    CHECK(memlift_tx_write(tx, type, object, 16, "a note", 7) == MEMLIFT_OK);
    CHECK(memlift_tx_get(tx, type, object, &seen, &bytes) == MEMLIFT_OK && ((const account *)seen)->balance == 5);
    CHECK(memlift_tx_abort(tx) == MEMLIFT_OK && memlift_tx_abort(NULL) == MEMLIFT_OK);
    CHECK(balance(object) == 100);

    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_get(tx, blob, object, &seen, NULL) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_tx_get(tx, type, 0, &seen, NULL) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_tx_get(tx, type, object + 16, &seen, NULL) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_tx_root(tx, blob, &root) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_tx_write(tx, type, object, 0, NULL, 8) == MEMLIFT_BAD_ARGUMENT);
    changed(tx, object)->balance = 7;
    CHECK(memlift_tx_commit(tx) == MEMLIFT_OK && balance(object) == 7); /* looking in vain does no harm */

    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    changed(tx, object)->balance = 8;
    CHECK(memlift_tx_add_range(tx, type, object, 30, 8, &data) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_tx_commit(tx) == MEMLIFT_BAD_ORDER && balance(object) == 7); /* changing in vain does */

    CHECK(memlift_tx_begin(pool, MEMLIFT_BUFFERED, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_alloc(tx, blob, 100000, &gone, &data) == MEMLIFT_OK);
    memset(data, 6, 100000);
    CHECK(memlift_tx_commit(tx) == MEMLIFT_OK && memlift_pool_sync(pool) == MEMLIFT_OK);
    snprintf(copy, sizeof copy, "%s.copy", path);
    CHECK(memlift_pool_backup(pool, copy, 0) == MEMLIFT_OK);
    CHECK(memlift_pool_backup(pool, copy, 0) == MEMLIFT_FILE_EXISTS);
    CHECK(memlift_pool_backup(pool, NULL, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_pool_backup(pool, path, 0) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_tx_abort(tx) == MEMLIFT_OK);
    CHECK(memlift_pool_open(copy, NULL, &spare) == MEMLIFT_OK);
    CHECK(memlift_tx_begin(spare, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_get(tx, blob, gone, &seen, &bytes) == MEMLIFT_OK && bytes == 100000);
    CHECK(((const uint8_t *)seen)[99999] == 6);
    CHECK(memlift_tx_abort(tx) == MEMLIFT_OK && memlift_pool_close(spare) == MEMLIFT_OK);
    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_free(tx, type, gone) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_tx_abort(tx) == MEMLIFT_OK);
    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_get(tx, blob, gone, &seen, &bytes) == MEMLIFT_OK && bytes == 100000);
    CHECK(((const uint8_t *)seen)[99999] == 6);
    CHECK(memlift_tx_add_range(tx, blob, gone, 0, 100000, &data) == MEMLIFT_OK);
    CHECK(memlift_tx_free(tx, blob, gone) == MEMLIFT_OK);
    CHECK(memlift_tx_get(tx, blob, gone, &seen, NULL) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_tx_commit(tx) == MEMLIFT_OK);

    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_alloc(tx, blob, 200000, &gone, NULL) == MEMLIFT_OK);
    CHECK(memlift_tx_commit(tx) == MEMLIFT_OK);
    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_add_range(tx, blob, gone, 0, 200000, &data) == MEMLIFT_OK);
    memset(data, 1, 200000);
    CHECK(memlift_tx_commit(tx) == MEMLIFT_OK); /* more than a lane takes */
    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_get(tx, blob, gone, &seen, NULL) == MEMLIFT_OK && ((const uint8_t *)seen)[199999] == 1);
    CHECK(memlift_tx_alloc(tx, blob, 30 << 20, &gone, NULL) == MEMLIFT_POOL_FULL);
    CHECK(memlift_tx_alloc(tx, blob, 100 << 20, &gone, NULL) == MEMLIFT_POOL_FULL);
    CHECK(memlift_tx_alloc(tx, blob, UINT64_C(1) << 60, &gone, NULL) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_tx_abort(tx) == MEMLIFT_OK);
    CHECK(memlift_tx_commit(NULL) == MEMLIFT_BAD_ARGUMENT && memlift_read_end(NULL) == MEMLIFT_OK);
    return object;
}

static void nearpm(void) {
    memlift_tx *tx;
    memlift_object page, copy;
    void *data;
    const void *seen;
    const uint64_t word = 0x1122334455667788u;
    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_alloc(tx, blob, 3 * 4096 + 100, &page, NULL) == MEMLIFT_OK);
    CHECK(memlift_nearpm_commit_log(tx) == MEMLIFT_OK);

    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_nearpm_undolog_create(tx, blob, page, 64, 8, &data) == MEMLIFT_OK);
    memcpy(data, &word, 8);
    CHECK(memlift_tx_abort(tx) == MEMLIFT_OK);

    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_get(tx, blob, page, &seen, NULL) == MEMLIFT_OK && ((const uint8_t *)seen)[64] == 0);
    memlift_nearpm_redo redo[] = {{blob, page, 8, 8, &word}, {blob, page, 3 * 4096 + 92, 8, &word}, {blob, page, 3 * 4096 + 93, 8, &word}};
    CHECK(memlift_nearpm_applylog(tx, redo, 3) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_tx_get(tx, blob, page, &seen, NULL) == MEMLIFT_OK && ((const uint8_t *)seen)[8] == 0);
    CHECK(memlift_nearpm_applylog(tx, redo, 2) == MEMLIFT_OK && memlift_nearpm_applylog(tx, NULL, 0) == MEMLIFT_OK);
    CHECK(memlift_nearpm_applylog(tx, NULL, 1) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_nearpm_ckpoint_create(tx, blob, page, 5000, 8, &data) == MEMLIFT_OK);
    memcpy((uint8_t *)data - (5000 - 4096), &word, 8); /* anywhere in the page */
    memcpy((uint8_t *)data + (8192 - 5008), &word, 8);
    CHECK(memlift_nearpm_ckpoint_create(tx, blob, page, 3 * 4096, 100, &data) == MEMLIFT_OK);
    CHECK(memlift_nearpm_commit_log(tx) == MEMLIFT_OK);

    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_nearpm_shadowcpy(tx, blob, page, &copy, &data) == MEMLIFT_OK && copy != page);
    const uint8_t *bytes = data;
    CHECK(memcmp(bytes + 8, &word, 8) == 0 && memcmp(bytes + 3 * 4096 + 92, &word, 8) == 0);
    CHECK(memcmp(bytes + 4096, &word, 8) == 0 && memcmp(bytes + 8184, &word, 8) == 0 && bytes[8192] == 0);
    ((uint8_t *)data)[9000] = 9;
    CHECK(memlift_tx_free(tx, blob, page) == MEMLIFT_OK);
    CHECK(memlift_nearpm_commit_log(tx) == MEMLIFT_OK);
    CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_get(tx, blob, copy, &seen, NULL) == MEMLIFT_OK && ((const uint8_t *)seen)[9000] == 9);
    CHECK(memlift_nearpm_shadowcpy(tx, blob, page, &copy, &data) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_nearpm_commit_log(tx) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_nearpm_undolog_create(NULL, blob, copy, 0, 1, &data) == MEMLIFT_BAD_ARGUMENT);
}

static void *add(void *object) {
    for (int i = 0; i < 200; i++) {
        memlift_tx *tx;
        CHECK(memlift_tx_begin(pool, MEMLIFT_GROUP, &tx) == MEMLIFT_OK);
        changed(tx, *(memlift_object *)object)->balance++;
        CHECK(memlift_tx_commit(tx) == MEMLIFT_OK);
    }
    return NULL;
}

static void replicas(const char *folder) {
    char from[4200], place[4200], to[4200], aside[4300], trouble[300] = "x";
    snprintf(from, sizeof from, "%s/replicated.pool", folder);
    snprintf(place, sizeof place, "%s/replica", folder);
    snprintf(to, sizeof to, "%s/restored.pool", folder);
    snprintf(aside, sizeof aside, "%s.aside", place);
    memlift_pool_options options = {.replicate = place, .replica_wait_s = 0.5}, wrong = options;
    memlift_replica replica;
    memlift_tx *tx;
    memlift_object object;
    void *data;
    wrong.replica_wait_s = -1;
    CHECK(memlift_pool_create(from, &wrong, &pool) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_pool_create(from, NULL, &pool) == MEMLIFT_OK);
    CHECK(memlift_tx_begin(pool, MEMLIFT_REPLICATED, &tx) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_pool_replica(pool, &replica, NULL, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_pool_wait_replica(pool, 1) == MEMLIFT_BAD_ARGUMENT && memlift_pool_close(pool) == MEMLIFT_OK);
    CHECK(memlift_pool_open(from, &options, &pool) == MEMLIFT_OK);
    CHECK(memlift_pool_type(pool, "account", sizeof(account), FIELDS, 3, &type) == MEMLIFT_OK);
    CHECK(memlift_tx_begin(pool, MEMLIFT_REPLICATED, &tx) == MEMLIFT_OK);
    CHECK(memlift_tx_alloc(tx, type, 0, &object, &data) == MEMLIFT_OK);
    ((account *)data)->balance = 1;
    CHECK(memlift_tx_set_root(tx, type, object) == MEMLIFT_OK && memlift_tx_commit(tx) == MEMLIFT_OK);
    CHECK(memlift_pool_wait_replica(pool, 60) == MEMLIFT_OK && memlift_pool_wait_replica(pool, -1) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_pool_replica(pool, &replica, trouble, sizeof trouble) == MEMLIFT_OK && trouble[0] == 0);
    CHECK(replica.sequence == replica.committed && replica.sent_bytes > 4096 && replica.lag_s >= 0 && replica.ended == 0);
    /* Its store is away: the change is in the file, and goes to the replica when that is back. */
    CHECK(rename(place, aside) == 0);
    FILE *file = fopen(place, "w");
    fclose(file);
    CHECK(memlift_tx_begin(pool, MEMLIFT_REPLICATED, &tx) == MEMLIFT_OK);
    changed(tx, object)->balance = 2;
    CHECK(memlift_tx_commit(tx) == MEMLIFT_NOT_REPLICATED && balance(object) == 2);
    CHECK(memlift_pool_close(pool) == MEMLIFT_NOT_REPLICATED);
    CHECK(memlift_pool_open(from, &options, &pool) != MEMLIFT_OK);
    remove(place);
    CHECK(rename(aside, place) == 0);
    CHECK(memlift_pool_open(from, &options, &pool) == MEMLIFT_OK && memlift_pool_close(pool) == MEMLIFT_OK);
    CHECK(memlift_replica_restore(place, to, 1) == MEMLIFT_REPLICA_FAILED);
    CHECK(memlift_replica_restore(folder, to, 0) == MEMLIFT_REPLICA_FAILED);
    CHECK(memlift_replica_restore(place, NULL, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_replica_restore(place, from, 0) == MEMLIFT_FILE_EXISTS);
    CHECK(memlift_replica_restore(place, to, 0) == MEMLIFT_OK);
    CHECK(memlift_pool_open(to, NULL, &pool) == MEMLIFT_OK);
    CHECK(memlift_pool_type(pool, "account", sizeof(account), FIELDS, 3, &type) == MEMLIFT_OK);
    CHECK(balance(object) == 2 && memlift_pool_close(pool) == MEMLIFT_OK);
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    for (uint32_t domain = MEMLIFT_DOMAIN_LINES; domain <= MEMLIFT_DOMAIN_PAGES; domain++) {
        snprintf(path, sizeof path, "%s/test%u.pool", arguments[1], (unsigned)domain);
        snprintf(other, sizeof other, "%s/other%u.pool", arguments[1], (unsigned)domain);
        opening(domain);
        types();
        memlift_object object = transactions();
        nearpm();
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, add, &object);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
        CHECK(balance(object) == 607);

        memlift_tx *tx;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            int refused = memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_BAD_ARGUMENT;
            _exit(refused && memlift_pool_close(pool) == MEMLIFT_OK ? 0 : 1);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);

        CHECK(memlift_pool_close(pool) == MEMLIFT_OK && memlift_pool_close(NULL) == MEMLIFT_OK);
        CHECK(memlift_nearpm_init_device(path, NULL, &pool) == MEMLIFT_OK);
        types();
        CHECK(balance(object) == 607);
        CHECK(memlift_pool_close(pool) == MEMLIFT_OK);
        memlift_pool_options reading = {.read_only = 1};
        CHECK(memlift_pool_open(path, &reading, &pool) == MEMLIFT_OK);
        types();
        CHECK(memlift_tx_begin(pool, MEMLIFT_SYNC, &tx) == MEMLIFT_READ_ONLY);
        CHECK(balance(object) == 607 && memlift_pool_close(pool) == MEMLIFT_OK);
        CHECK(memlift_nearpm_init_device(other, NULL, &pool) == MEMLIFT_OK && memlift_pool_close(pool) == MEMLIFT_OK);

        /* Beside a writer, which is this process too. */
        memlift_pool_options shared = {.readers_bytes = 1 << 20};
        memlift_pool *writer = NULL;
        CHECK(memlift_pool_open(path, &shared, &writer) == MEMLIFT_OK);
        CHECK(memlift_pool_open(path, &reading, &pool) == MEMLIFT_OK);
        types();
        CHECK(balance(object) == 607);
        memlift_pool *reader = pool;
        pool = writer;
        CHECK(memlift_tx_begin(writer, MEMLIFT_SYNC, &tx) == MEMLIFT_OK);
        changed(tx, object)->balance = 608;
        CHECK(memlift_tx_commit(tx) == MEMLIFT_OK && balance(object) == 608);
        pool = reader;
        CHECK(balance(object) == 607 && memlift_pool_refresh(reader) == MEMLIFT_OK && balance(object) == 608);
        CHECK(memlift_pool_refresh(NULL) == MEMLIFT_BAD_ARGUMENT && memlift_pool_refresh(writer) == MEMLIFT_OK);
        CHECK(memlift_pool_close(writer) == MEMLIFT_OK && memlift_pool_refresh(reader) == MEMLIFT_SNAPSHOT_GONE);
        CHECK(balance(object) == 608 && memlift_pool_close(reader) == MEMLIFT_OK);
    }
    replicas(arguments[1]);
    if (failures == 0) printf("all as the header says\n");
    return failures != 0;
}
