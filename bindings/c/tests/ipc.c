/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every function of memlift_ipc.h against a server whose address is the first argument: echo, fail, hold (until "go" is called, of another server). */
#include <memlift_ipc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { LARGE = 3 << 20 };

static unsigned char large[LARGE];

static int same(const memlift_answer *answer, const void *data, size_t bytes) {
    return memlift_answer_bytes(answer) == bytes && (bytes == 0 || memcmp(memlift_answer_data(answer), data, bytes) == 0);
}

static int synchronous(const memlift_client *client) {
    memlift_answer *answer = NULL;
    for (uint32_t device = 0; device < 3; device++)
        for (uint32_t cache = 0; cache < 3; cache++)
            for (uint32_t crc = 0; crc < 2; crc++) {
                memlift_call_options options = {.device = device, .cache = cache, .crc = crc, .look_at_once = crc, .pack = cache == 1};
                CHECK(memlift_call(client, "echo", large, LARGE, &options, &answer) == MEMLIFT_OK);
                CHECK(same(answer, large, LARGE));
                memlift_answer_free(answer);
                CHECK(memlift_call(client, "echo", NULL, 0, &options, &answer) == MEMLIFT_OK && same(answer, NULL, 0));
                memlift_answer_free(answer);
            }
    memlift_call_options options = {.device = MEMLIFT_DEVICE_DSA};
    CHECK(memlift_call(client, "echo", "x", 1, &options, &answer) == MEMLIFT_NO_DEVICE);
    options = (memlift_call_options){.device = 9};
    CHECK(memlift_call(client, "echo", "x", 1, &options, &answer) == MEMLIFT_BAD_ARGUMENT);
    options = (memlift_call_options){.reserved = 1};
    CHECK(memlift_call(client, "echo", "x", 1, &options, &answer) == MEMLIFT_BAD_ARGUMENT);
    options = (memlift_call_options){.timeout_s = -1};
    CHECK(memlift_call(client, "echo", "x", 1, &options, &answer) == MEMLIFT_BAD_ARGUMENT);
    options = (memlift_call_options){.timeout_s = 1e300};
    CHECK(memlift_call(client, "echo", "x", 1, &options, &answer) == MEMLIFT_OK && same(answer, "x", 1));
    memlift_answer_free(answer);
    CHECK(memlift_call(client, "fail", "x", 1, NULL, &answer) == MEMLIFT_CALL_FAILED);
    CHECK(strstr(memlift_last_error(), "no luck today") != NULL);
    CHECK(memlift_call(client, "none", "x", 1, NULL, &answer) == MEMLIFT_CALL_FAILED);
    CHECK(memlift_call(NULL, "echo", "x", 1, NULL, &answer) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_call(client, "echo", NULL, 1, NULL, &answer) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_call(client, "echo", "x", 1, NULL, NULL) == MEMLIFT_BAD_ARGUMENT);

    memlift_loan *loan = NULL;
    CHECK(memlift_loan_new(client, LARGE, &loan) == MEMLIFT_OK);
    memcpy(memlift_loan_data(loan), large, LARGE);
    CHECK(memlift_call(client, "echo", memlift_loan_data(loan), LARGE, NULL, &answer) == MEMLIFT_OK);
    CHECK(same(answer, large, LARGE));
    memlift_answer_free(answer);
    memlift_loan_free(loan);
    return 0;
}

static int jobs(const memlift_client *client, const memlift_client *other, const memlift_client *gate) {
    memlift_job *job[3] = {NULL};
    memlift_answer *answer = NULL;
    memlift_job_state_t state;
    memlift_load load;
    for (int i = 0; i < 3; i++) CHECK(memlift_call_async(client, "hold", "x", 1, NULL, &job[i]) == MEMLIFT_OK);
    do CHECK(memlift_job_state(job[0], 0, &state) == MEMLIFT_OK);
    while (state.state != MEMLIFT_JOB_TAKEN || state.total != 4);
    CHECK(state.done == 1);
    CHECK(memlift_job_state(job[2], 0, &state) == MEMLIFT_OK && state.state == MEMLIFT_JOB_QUEUED && state.ahead == 1);
    CHECK(memlift_client_load(other, &load) == MEMLIFT_OK);
    CHECK(load.handlers == 1 && load.sessions == 2 && load.queued == 2 && load.busy_handlers == 1);
    CHECK(memlift_job_done(job[0]) == 0);
    CHECK(memlift_job_wait(job[0], 0.001, &answer) == MEMLIFT_LATE);
    for (int i = 0; i < 3; i++) {
        CHECK(memlift_call(gate, "go", NULL, 0, NULL, &answer) == MEMLIFT_OK);
        memlift_answer_free(answer);
        CHECK(memlift_job_wait(job[i], 0, &answer) == MEMLIFT_OK && same(answer, "x", 1));
        CHECK(memlift_job_state(job[i], 0, &state) == MEMLIFT_OK && state.state == MEMLIFT_JOB_ANSWERED);
        CHECK(memlift_job_done(job[i]) == 1);
        memlift_answer_free(answer);
        memlift_job_free(job[i]);
    }
    return 0;
}

static int pipelined(const memlift_client *client) {
    memlift_pipeline *pipeline = memlift_pipeline_new(client, 4, 3);
    memlift_answer *answer = NULL;
    uint64_t id = 0, sum = 0, failed = 0;
    CHECK(pipeline != NULL);
    for (int i = 0; i < 20; i++) {
        CHECK(memlift_pipeline_submit(pipeline, i == 7 ? "fail" : "echo", &i, sizeof i, NULL, &id) == MEMLIFT_OK);
        if (i == 7) failed = id;
    }
    CHECK(memlift_pipeline_flush(pipeline) == MEMLIFT_OK);
    for (int left = 20; left > 0; left--) {
        int code = memlift_pipeline_next(pipeline, 0, &id, &answer), number = 0;
        CHECK(id != 0 && code == (id == failed ? MEMLIFT_CALL_FAILED : MEMLIFT_OK));
        if (code == MEMLIFT_OK) memcpy(&number, memlift_answer_data(answer), sizeof number);
        sum += (uint64_t)number;
        memlift_answer_free(answer);
    }
    CHECK(sum == 20 * 19 / 2 - 7);
    CHECK(memlift_pipeline_next(pipeline, 0, &id, &answer) == MEMLIFT_OK && id == 0 && answer == NULL);
    memlift_pipeline_free(pipeline);
    return 0;
}

static int watched(const memlift_client *client) {
    memlift_watch *watch = memlift_watch_new(client);
    memlift_answer *answer = NULL;
    uint64_t id = 0;
    int sent = 0, got = 0;
    CHECK(watch != NULL && memlift_watch_fd(watch) >= 0);
    while (got < 200) {
        int code = MEMLIFT_OK;
        while (sent < 200 && (code = memlift_watch_submit(watch, "echo", large, 5000, NULL, &id)) == MEMLIFT_OK) sent++;
        CHECK(code == MEMLIFT_OK || code == MEMLIFT_BUSY);
        int before = got;
        for (;;) {
            CHECK(memlift_watch_next(watch, &id, &answer) == MEMLIFT_OK);
            if (id == 0) break;
            CHECK(same(answer, large, 5000));
            memlift_answer_free(answer);
            got++;
        }
        struct pollfd readable = {.fd = memlift_watch_fd(watch), .events = POLLIN};
        if (got == before) CHECK(poll(&readable, 1, -1) == 1);
    }
    memlift_watch_free(watch);
    return 0;
}

int main(int count, char **arguments) {
    memlift_client *client = NULL, *other = NULL, *gate = NULL;
    CHECK(count == 3);
    for (size_t i = 0; i < LARGE; i++) large[i] = (unsigned char)(i * 31 >> 5);
    CHECK(memlift_client_connect("nobody-listens-here", &client) == MEMLIFT_NO_SERVER);
    CHECK(memlift_client_connect("no good name", &client) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_client_connect(arguments[1], &client) == MEMLIFT_OK);
    CHECK(memlift_client_connect(arguments[1], &other) == MEMLIFT_OK);
    CHECK(memlift_client_connect(arguments[2], &gate) == MEMLIFT_OK);
    if (synchronous(client) || jobs(client, other, gate) || pipelined(client) || watched(other)) return 1;
    memlift_client_free(other);
    memlift_client_free(gate);
    memlift_answer *answer = NULL;
    CHECK(memlift_call(client, "echo", large, LARGE, NULL, &answer) == MEMLIFT_OK);
    memlift_client_free(client);
    CHECK(same(answer, large, LARGE));
    memlift_answer_free(answer);
    printf("all as the header says\n");
    return 0;
}
