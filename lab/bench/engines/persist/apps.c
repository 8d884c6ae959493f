// SPDX-License-Identifier: Apache-2.0 OR MIT
// The rivals of application rows: TPC-C new-order, TATP and a key-value store, on one to sixteen threads. One process per row.
//
//   apps POOL HOW APP THREADS     HOW: libpmemobj; checkpoint or shadow, where compiled with -DSTORE_PAGES
//
// Flow   tables filled, durable ─▶ one line says how it is configured ─▶ `run SEED COUNT` ─▶ a JSON line: seconds, cpu_s, checksum,
//        counts · `step` ─▶ SIGSTOP, SIGSTOP, some transactions, SIGSTOP, for whoever traces and steps through them ─▶ a JSON line:
//        how many they were. It ends when its stdin does
// Window COUNT transactions, divided among the threads, which are there before it begins. What is drawn beforehand and checksums lie
//        outside
// Draw   thread t of run s starts from s * 256 + t
// Sum    of what the transactions read and of all that is there; with more than one thread: of what their order does not change

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "app.h"

#include "kv.h"
#include "tatp.h"
#include "tpcc.h"

#define BEFORE_STEPS 100
#define STEPPED 16

static const struct app *app;
static pthread_barrier_t barrier;

struct worker {
    pthread_t thread;
    unsigned number;
    uint64_t state, count;
    struct tally tally;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    pthread_barrier_wait(&barrier);
    app->work(worker->number, worker->state, worker->count, &worker->tally);
    return NULL;
}

static void answer(double seconds, double cpu_s, uint64_t checksum, uint64_t transactions, uint64_t aborted) {
    printf("{\"seconds\": %.9f, \"cpu_s\": %.9f, \"checksum\": \"%016llx\", \"counts\": {\"transactions\": %llu, \"aborted\": %llu}}\n",
           seconds, cpu_s, (unsigned long long)checksum, (unsigned long long)transactions, (unsigned long long)aborted);
    fflush(stdout);
}

static void run(uint64_t seed, uint64_t count, unsigned threads) {
    struct worker workers[THREADS_MAX];
    struct tally all = {0, 0, 0};
    for (unsigned at = 0; at < threads; at++) {
        workers[at] = (struct worker){.number = at, .state = seed * 256 + at, .count = count / threads};
        if (app->prepare) app->prepare(at, workers[at].state, workers[at].count);
    }
    if (threads > 1) {
        pthread_barrier_init(&barrier, NULL, threads + 1);
        for (unsigned at = 0; at < threads; at++)
            if (pthread_create(&workers[at].thread, NULL, work, &workers[at])) fail("starting a thread");
    }
    double cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID), start = seconds_of(CLOCK_MONOTONIC);
    if (threads > 1) {
        pthread_barrier_wait(&barrier);
        for (unsigned at = 0; at < threads; at++) pthread_join(workers[at].thread, NULL);
    } else {
        app->work(0, workers[0].state, workers[0].count, &workers[0].tally);
    }
    double seconds = seconds_of(CLOCK_MONOTONIC) - start;
    cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
    if (threads > 1) pthread_barrier_destroy(&barrier);
    for (unsigned at = 0; at < threads; at++) {
        all.settled += workers[at].tally.settled;
        all.racing += workers[at].tally.racing;
        all.aborted += workers[at].tally.aborted;
    }
    app->look(&all);
    answer(seconds, cpu_s, threads > 1 ? all.settled : all.settled + all.racing, count / threads * threads, all.aborted);
}

static void step(void) {
    struct tally tally = {0, 0, 0};
    if (app->prepare) app->prepare(0, 1, BEFORE_STEPS);
    app->work(0, 1, BEFORE_STEPS, &tally);
    if (app->prepare) app->prepare(0, 2, STEPPED);
    raise(SIGSTOP);
    raise(SIGSTOP);
    app->work(0, 2, STEPPED, &tally);
    raise(SIGSTOP);
    printf("{\"transactions\": %d}\n", STEPPED);
    fflush(stdout);
}

int main(int count, char **arguments) {
    const struct app *apps[] = {&app_tpcc, &app_tatp, &app_kv, &app_kv_mixed};
    unsigned threads = count == 5 ? (unsigned)strtoul(arguments[4], NULL, 10) : 0;
    for (unsigned at = 0; count == 5 && at < sizeof apps / sizeof *apps; at++)
        if (!strcmp(arguments[3], apps[at]->name)) app = apps[at];
    if (!app || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: apps POOL HOW tpcc|tatp|kv|kv_mixed THREADS\n");
        return 2;
    }
    store_create(arguments[1], arguments[2], app->pool_bytes);
    app->fill();
    store_settle();
    printf("{\"about\": \"");
    store_about();
    printf("\"}\n");
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long seed, transactions;
        if (sscanf(line, "run %llu %llu", &seed, &transactions) == 2) {
            run(seed, transactions, threads);
        } else if (!strcmp(line, "step\n")) {
            step();
        } else {
            fprintf(stderr, "apps: `%s` is neither `run SEED COUNT` nor `step`\n", line);
            return 2;
        }
    }
    return 0;
}
