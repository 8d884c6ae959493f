/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every function of a server of memlift_ipc.h, called by a client of the same program; the argument is its address. */
#include <memlift_ipc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { LARGE = 3 << 20 };

static unsigned char large[LARGE];

/* Requests that another thread answers. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t there;
    memlift_request *request;
    int seen; /* its progress */
} later = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0};

static void echo(memlift_request *request, void *user) {
    (*(size_t *)user)++; /* one call at a time: the client of this test waits */
    if (memlift_request_answer(request, NULL, 1) != MEMLIFT_BAD_ARGUMENT) abort();
    memlift_request_answer(request, memlift_request_data(request), memlift_request_bytes(request));
}

static void fail(memlift_request *request, void *user) {
    (void)user;
    if (memlift_request_fail(request, NULL) != MEMLIFT_BAD_ARGUMENT) abort();
    memlift_request_fail(request, "no luck today");
}

static void whose(memlift_request *request, void *user) {
    (void)user;
    uint32_t uid = memlift_request_uid(request);
    memlift_request_answer(request, &uid, sizeof uid);
}

static void keep(memlift_request *request, void *user) {
    (void)user;
    memlift_request_progress(request, 3, 4);
    pthread_mutex_lock(&later.lock);
    while (!later.seen) pthread_cond_wait(&later.there, &later.lock);
    later.request = request;
    pthread_cond_signal(&later.there);
    pthread_mutex_unlock(&later.lock);
}

static void *answer_later(void *unused) {
    (void)unused;
    pthread_mutex_lock(&later.lock);
    while (later.request == NULL) pthread_cond_wait(&later.there, &later.lock);
    memlift_request_answer(later.request, "late", 4);
    later.request = NULL;
    pthread_mutex_unlock(&later.lock);
    return NULL;
}

static void stop(memlift_request *request, void *user) {
    memlift_request_answer(request, NULL, 0);
    memlift_server_stop(*(memlift_server **)user);
}

static int refusals(const char *address, const memlift_server *server) {
    memlift_server *other = NULL;
    CHECK(memlift_server_bind(address, NULL, &other) == MEMLIFT_ADDRESS_IN_USE);
    CHECK(memlift_server_bind("no good name", NULL, &other) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_server_bind(NULL, NULL, &other) == MEMLIFT_BAD_ARGUMENT);
    memlift_server_options options = {.shared = 2};
    CHECK(memlift_server_bind("any", &options, &other) == MEMLIFT_BAD_ARGUMENT);
    options = (memlift_server_options){.trust = 2};
    CHECK(memlift_server_bind("any", &options, &other) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_server_register(server, "echo", fail, NULL) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_server_register(server, "null", NULL, NULL) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_server_register(NULL, "null", fail, NULL) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_server_start(NULL) == MEMLIFT_BAD_ARGUMENT && memlift_server_stop(NULL) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_request_answer(NULL, NULL, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_request_fail(NULL, "why") == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_request_progress(NULL, 0, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_request_data(NULL) == NULL && memlift_request_bytes(NULL) == 0);
    memlift_server_free(NULL);
    return 0;
}

/* Two servers at one address; with the second one alone it goes on. */
static int shared(const char *address) {
    memlift_server *servers[2] = {NULL, NULL};
    memlift_client *client = NULL;
    memlift_answer *answer = NULL;
    size_t echoed[2] = {0, 0};
    memlift_server_options options = {.shared = 1};
    for (int i = 0; i < 2; i++) {
        CHECK(memlift_server_bind(address, &options, &servers[i]) == MEMLIFT_OK);
        CHECK(memlift_server_register(servers[i], "echo", echo, &echoed[i]) == MEMLIFT_OK);
        CHECK(memlift_server_start(servers[i]) == MEMLIFT_OK);
    }
    CHECK(memlift_server_bind(address, NULL, &servers[0]) == MEMLIFT_ADDRESS_IN_USE);
    memlift_server_free(servers[0]);
    CHECK(memlift_client_connect(address, &client) == MEMLIFT_OK);
    CHECK(memlift_call(client, "echo", large, 9, NULL, &answer) == MEMLIFT_OK && echoed[1] == 1);
    memlift_answer_free(answer);
    memlift_client_free(client);
    memlift_server_free(servers[1]);
    return 0;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    for (size_t i = 0; i < LARGE; i++) large[i] = (unsigned char)(i * 31 >> 5);
    for (uint32_t trust = 0; trust < 2; trust++) {
        memlift_server *server = NULL;
        memlift_client *client = NULL;
        memlift_answer *answer = NULL;
        memlift_load load;
        size_t echoed = 0;
        memlift_server_options options = {.handlers = 3, .trust = trust, .message_bytes_max = LARGE};
        CHECK(memlift_server_bind(arguments[1], &options, &server) == MEMLIFT_OK);
        CHECK(memlift_server_register(server, "echo", echo, &echoed) == MEMLIFT_OK);
        CHECK(memlift_server_register(server, "fail", fail, NULL) == MEMLIFT_OK);
        CHECK(memlift_server_register(server, "whose", whose, NULL) == MEMLIFT_OK);
        CHECK(memlift_server_register(server, "keep", keep, NULL) == MEMLIFT_OK);
        CHECK(memlift_server_register(server, "stop", stop, &server) == MEMLIFT_OK);
        CHECK(memlift_server_start(server) == MEMLIFT_OK);
        if (refusals(arguments[1], server)) return 1;

        CHECK(memlift_client_connect(arguments[1], &client) == MEMLIFT_OK);
        CHECK(memlift_client_load(client, &load) == MEMLIFT_OK && load.handlers == 3);
        for (size_t bytes = 0; bytes <= LARGE; bytes = bytes * 5 + 1) {
            CHECK(memlift_call(client, "echo", large, bytes, NULL, &answer) == MEMLIFT_OK);
            CHECK(memlift_answer_bytes(answer) == bytes);
            CHECK(bytes == 0 || memcmp(memlift_answer_data(answer), large, bytes) == 0);
            memlift_answer_free(answer);
        }
        CHECK(echoed == 11);
        CHECK(memlift_call(client, "fail", "x", 1, NULL, &answer) == MEMLIFT_CALL_FAILED);
        CHECK(strstr(memlift_last_error(), "no luck today") != NULL);
        uint32_t uid = 0;
        CHECK(memlift_call(client, "whose", NULL, 0, NULL, &answer) == MEMLIFT_OK && memlift_answer_bytes(answer) == sizeof uid);
        memcpy(&uid, memlift_answer_data(answer), sizeof uid);
        CHECK(uid == geteuid());
        memlift_answer_free(answer);

        memlift_job *job = NULL;
        memlift_job_state_t state;
        CHECK(memlift_call_async(client, "keep", "x", 1, NULL, &job) == MEMLIFT_OK);
        CHECK(memlift_job_wait(job, 0.01, &answer) == MEMLIFT_LATE);
        do CHECK(memlift_job_state(job, 0, &state) == MEMLIFT_OK);
        while (state.state != MEMLIFT_JOB_TAKEN || state.total != 4);
        CHECK(state.done == 3);
        pthread_mutex_lock(&later.lock);
        later.seen = 1;
        pthread_cond_signal(&later.there);
        pthread_mutex_unlock(&later.lock);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, answer_later, NULL) == 0);
        CHECK(memlift_job_wait(job, 0, &answer) == MEMLIFT_OK && memcmp(memlift_answer_data(answer), "late", 4) == 0);
        pthread_join(thread, NULL);
        memlift_answer_free(answer);
        memlift_job_free(job);

        /* From a handler, or from here; a request that was kept outlives its server. */
        CHECK(memlift_call_async(client, "keep", "x", 1, NULL, &job) == MEMLIFT_OK);
        pthread_mutex_lock(&later.lock);
        while (later.request == NULL) pthread_cond_wait(&later.there, &later.lock);
        memlift_request *kept = later.request;
        later.request = NULL;
        pthread_mutex_unlock(&later.lock);
        if (trust == 0) {
            CHECK(memlift_call(client, "stop", NULL, 0, NULL, &answer) == MEMLIFT_OK);
            memlift_answer_free(answer);
        } else {
            CHECK(memlift_server_stop(server) == MEMLIFT_OK);
        }
        CHECK(memlift_job_wait(job, 0, &answer) == MEMLIFT_PEER_DIED);
        memlift_job_free(job);
        memlift_server_free(server);
        later.seen = 0;
        CHECK(memlift_request_bytes(kept) == 1 && memcmp(memlift_request_data(kept), "x", 1) == 0);
        CHECK(memlift_request_answer(kept, "nobody reads it", 15) == MEMLIFT_OK);
        memlift_client_free(client);
    }
    if (shared(arguments[1])) return 1;
    printf("all as the header says\n");
    return 0;
}
