/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Arrays to a server in C and back; with a second argument, to a server in another language at that address. */
#include "check.h"
#include <memlift_ipc.h>
#include <stdlib.h>
#include <string.h>

/* Answers an array of float with one twice as large, and all else as it came. */
static void twice(memlift_request *request, void *user) {
    memlift_array array;
    (void)user;
    if (memlift_request_array(request, &array) || array.data != memlift_request_data(request)) {
        memlift_request_fail(request, memlift_last_error());
        return;
    }
    if (array.kind != 'f' || array.element_bytes != 4) {
        if (array.kind == 0)
            memlift_request_answer(request, array.data, (size_t)array.bytes);
        else if (memlift_request_answer_array(request, &array))
            memlift_request_fail(request, memlift_last_error());
        return;
    }
    float *doubled = malloc(array.bytes ? array.bytes : 1);
    for (uint64_t at = 0; at < array.bytes / 4; at++)
        doubled[at] = 2 * ((const float *)array.data)[at];
    array.data = doubled;
    if (memlift_request_answer_array(request, &array))
        memlift_request_fail(request, memlift_last_error());
    free(doubled);
}

static memlift_array described(const void *data, uint32_t kind, uint32_t element_bytes, uint32_t dimensions,
                               const uint64_t *shape) {
    memlift_array array;
    memset(&array, 0, sizeof array);
    array.data = data;
    array.kind = kind;
    array.element_bytes = element_bytes;
    array.dimensions = dimensions;
    for (uint32_t at = 0; at < dimensions && at < 8; at++)
        array.shape[at] = shape[at];
    return array;
}

static int same_shape(const memlift_array *a, const memlift_array *b) {
    return a->kind == b->kind && a->element_bytes == b->element_bytes && a->dimensions == b->dimensions &&
           !memcmp(a->shape, b->shape, sizeof a->shape);
}

static int call(const memlift_client *client) {
    memlift_answer *answer;
    memlift_array got;
    uint64_t shape[8] = {2, 3, 1, 1, 1, 1, 1, 1};
    float numbers[6] = {1, 2, 3, 4, 5, 6.5f};

    memlift_array array = described(numbers, 'f', 4, 2, shape);
    CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_OK);
    CHECK(memlift_answer_array(answer, &got) == MEMLIFT_OK && same_shape(&got, &array));
    CHECK(got.bytes == sizeof numbers && got.data == memlift_answer_data(answer));
    for (int at = 0; at < 6; at++)
        CHECK(((const float *)got.data)[at] == 2 * numbers[at]);
    memlift_answer_free(answer);

    /* A megabyte, by a job. */
    uint64_t large[1] = {1 << 18};
    float *many = malloc(sizeof(float) << 18);
    for (int at = 0; at < 1 << 18; at++)
        many[at] = (float)at;
    array = described(many, 'f', 4, 1, large);
    memlift_job *job;
    CHECK(memlift_call_array_async(client, "double", &array, NULL, &job) == MEMLIFT_OK);
    CHECK(memlift_job_wait(job, 60, &answer) == MEMLIFT_OK);
    CHECK(memlift_answer_array(answer, &got) == MEMLIFT_OK && same_shape(&got, &array) && got.bytes == sizeof(float) << 18);
    CHECK(((const float *)got.data)[(1 << 18) - 1] == 2.0f * ((1 << 18) - 1));
    memlift_answer_free(answer);
    memlift_job_free(job);
    free(many);

    /* No dimensions is one element, and a dimension of 0 is none. */
    float one = 21;
    array = described(&one, 'f', 4, 0, NULL);
    CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_OK);
    CHECK(memlift_answer_array(answer, &got) == MEMLIFT_OK && same_shape(&got, &array) && *(const float *)got.data == 42);
    memlift_answer_free(answer);
    shape[1] = 0;
    array = described(NULL, 'f', 4, 2, shape);
    CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_OK);
    CHECK(memlift_answer_array(answer, &got) == MEMLIFT_OK && same_shape(&got, &array) && got.bytes == 0);
    memlift_answer_free(answer);

    /* What is wrong is named, and nothing is sent. */
    array = described(numbers, 'x', 4, 1, large);
    CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_BAD_ARGUMENT);
    CHECK(strstr(memlift_last_error(), "x4") != NULL);
    array = described(numbers, 'f', 3, 1, large);
    CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_BAD_ARGUMENT);
    array = described(numbers, 'f', 4, 0, NULL);
    array.dimensions = 9;
    CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_BAD_ARGUMENT);
    CHECK(strstr(memlift_last_error(), "8 dimensions") != NULL);
    shape[1] = 3;
    array = described(numbers, 'f', 4, 2, shape);
    array.bytes = 25;
    CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_BAD_ARGUMENT);
    CHECK(strstr(memlift_last_error(), "24") != NULL);
    array.bytes = 0;
    array.data = NULL;
    CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_call_array(client, "double", NULL, NULL, &answer) == MEMLIFT_BAD_ARGUMENT);
    uint64_t huge[8] = {1ull << 60, 1ull << 60, 1, 1, 1, 1, 1, 1};
    array = described(numbers, 'f', 4, 2, huge);
    CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_answer_array(NULL, &got) == MEMLIFT_BAD_ARGUMENT);
    return 0;
}

/* Other types come back as they were, and bytes are bytes. */
static int kinds(const memlift_client *client) {
    static const struct { uint32_t kind, bytes; } types[] = {
        {'b', 1}, {'i', 1}, {'i', 2}, {'i', 4}, {'i', 8}, {'u', 1}, {'u', 8}, {'f', 2}, {'f', 8}, {'c', 8}, {'c', 16}};
    memlift_answer *answer;
    memlift_array got;
    unsigned char data[16 * 4];
    uint64_t shape[8] = {4, 1, 1, 1, 1, 1, 1, 1};
    for (size_t at = 0; at < sizeof data; at++)
        data[at] = at % 2;
    for (size_t at = 0; at < sizeof types / sizeof *types; at++) {
        memlift_array array = described(data, types[at].kind, types[at].bytes, 8, shape);
        CHECK(memlift_call_array(client, "double", &array, NULL, &answer) == MEMLIFT_OK);
        CHECK(memlift_answer_array(answer, &got) == MEMLIFT_OK && same_shape(&got, &array));
        CHECK(got.bytes == 4 * types[at].bytes && !memcmp(got.data, data, got.bytes));
        memlift_answer_free(answer);
    }
    CHECK(memlift_call(client, "double", "bytes", 5, NULL, &answer) == MEMLIFT_OK);
    CHECK(memlift_answer_array(answer, &got) == MEMLIFT_OK);
    CHECK(got.kind == 0 && got.element_bytes == 1 && got.dimensions == 1 && got.shape[0] == 5 && !memcmp(got.data, "bytes", 5));
    memlift_answer_free(answer);
    return 0;
}

int main(int argc, char **argv) {
    memlift_server *server;
    memlift_client *client;
    if (argc > 2) {
        CHECK(memlift_client_connect(argv[2], &client) == MEMLIFT_OK);
        if (call(client))
            return 1;
        memlift_client_free(client);
        puts("all as the header says");
        return 0;
    }
    CHECK(argc > 1 && memlift_server_bind(argv[1], NULL, &server) == MEMLIFT_OK);
    CHECK(memlift_server_register(server, "double", twice, NULL) == MEMLIFT_OK);
    CHECK(memlift_server_start(server) == MEMLIFT_OK);
    CHECK(memlift_client_connect(argv[1], &client) == MEMLIFT_OK);
    if (call(client) || kinds(client))
        return 1;
    memlift_client_free(client);
    memlift_server_free(server);
    puts("all as the header says");
    return 0;
}
