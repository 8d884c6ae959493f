/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What a server in Python answers, read in C; and a Python client's value, echoed by number. Argument: the server's address. */
#include "check.h"
#include <memlift_ipc.h>
#include <string.h>

static int is_text(const memlift_value *value, const char *wanted) {
    const char *start;
    uint64_t bytes;
    return memlift_value_text(value, &start, &bytes) == MEMLIFT_OK && bytes == strlen(wanted) && memcmp(start, wanted, bytes) == 0;
}

static uint32_t kind_of(const memlift_value *value) {
    uint32_t kind = 1000;
    memlift_value_kind(value, &kind);
    return kind;
}

int main(int count, char **arguments) {
    memlift_client *client;
    memlift_answer *answer;
    memlift_value root, found, item;
    memlift_array array;
    int64_t whole;
    double number;
    uint64_t entries;
    if (count < 2)
        return 2;
    CHECK(memlift_client_connect(arguments[1], &client) == MEMLIFT_OK);
    CHECK(memlift_call(client, "describe", "x", 1, NULL, &answer) == MEMLIFT_OK);
    CHECK(memlift_answer_value(answer, &root) == MEMLIFT_OK);
    CHECK(kind_of(&root) == MEMLIFT_VALUE_DICT);
    CHECK(memlift_value_count(&root, &entries) == MEMLIFT_OK && entries == 9);

    CHECK(memlift_value_get(&root, "name", &found) == MEMLIFT_OK && is_text(&found, "gr\xc3\xbc\xc3\x9f" "e"));
    CHECK(memlift_value_get(&root, "blob", &found) == MEMLIFT_OK && is_text(&found, "by"));
    CHECK(kind_of(&found) == MEMLIFT_VALUE_BYTES);
    CHECK(memlift_value_get(&root, "none", &found) == MEMLIFT_OK && kind_of(&found) == MEMLIFT_VALUE_NONE);
    CHECK(memlift_value_get(&root, "yes", &found) == MEMLIFT_OK && kind_of(&found) == MEMLIFT_VALUE_BOOL);
    CHECK(memlift_value_int(&found, &whole) == MEMLIFT_OK && whole == 1);
    CHECK(memlift_value_get(&root, "large", &found) == MEMLIFT_OK);
    CHECK(memlift_value_int(&found, &whole) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_value_get(&root, "numbers", &found) == MEMLIFT_OK && kind_of(&found) == MEMLIFT_VALUE_LIST);
    CHECK(memlift_value_first(&found, &item) == MEMLIFT_OK);
    CHECK(memlift_value_int(&item, &whole) == MEMLIFT_OK && whole == -5);
    CHECK(memlift_value_next(&item) == MEMLIFT_OK && memlift_value_double(&item, &number) == MEMLIFT_OK && number == 2.5);
    CHECK(memlift_value_next(&item) == MEMLIFT_OK && kind_of(&item) == MEMLIFT_VALUE_LIST);
    CHECK(memlift_value_count(&item, &entries) == MEMLIFT_OK && entries == 0);
    CHECK(memlift_value_first(&item, &found) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_value_next(&item) == MEMLIFT_OK && memlift_value_double(&item, &number) == MEMLIFT_OK && number == 7);
    CHECK(memlift_value_next(&item) == MEMLIFT_NO_OBJECT);

    CHECK(memlift_value_get(&root, "frame", &found) == MEMLIFT_OK && memlift_value_array(&found, &array) == MEMLIFT_OK);
    CHECK(array.kind == 'f' && array.element_bytes == 8 && array.dimensions == 2 && array.shape[0] == 2 && array.shape[1] == 3);
    CHECK(array.bytes == 48 && ((const double *)array.data)[5] == 5);
    CHECK(memlift_value_get(&root, "fortran", &found) == MEMLIFT_OK);
    CHECK(memlift_value_array(&found, &array) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_value_get(&root, "special", &found) == MEMLIFT_OK && kind_of(&found) == MEMLIFT_VALUE_SPECIAL);
    CHECK(is_text(&found, "matrix") && memlift_value_first(&found, &item) == MEMLIFT_OK);
    CHECK(memlift_value_array(&item, &array) == MEMLIFT_OK && array.dimensions == 2);
    CHECK(memlift_value_get(&root, "nothing", &found) == MEMLIFT_NO_OBJECT);
    CHECK(memlift_value_get(&item, "nothing", &found) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_value_first(&item, &found) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_value_int(NULL, &whole) == MEMLIFT_BAD_ARGUMENT && memlift_value_int(&root, NULL) == MEMLIFT_BAD_ARGUMENT);

    /* Keys and values in their order. */
    CHECK(memlift_value_first(&root, &item) == MEMLIFT_OK && is_text(&item, "name"));
    for (entries = 1; memlift_value_next(&item) == MEMLIFT_OK; entries++)
        ;
    CHECK(entries == 18);
    memlift_answer_free(answer);

    /* An array is none. */
    CHECK(memlift_call(client, "array", "x", 1, NULL, &answer) == MEMLIFT_OK);
    CHECK(memlift_answer_value(answer, &root) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_answer_array(answer, &array) == MEMLIFT_OK && array.kind == 'i');
    memlift_answer_free(answer);
    memlift_client_free(client);
    puts("all as the header says");
    return 0;
}
