// SPDX-License-Identifier: Apache-2.0 OR MIT
// Threads that do nothing but calls while memory becomes short: each call is made once, and its result is its own.
#include <pthread.h>
#include <stdint.h>
#include "check.h"

#define THREADS 4
#define BYTES 3

static volatile int stop;

static void *calls(void *unused) {
    (void)unused;
    int ends[2];
    CHECK(pipe(ends) == 0);
    char *out = malloc(4096), *in = malloc(4096);
    for (uint32_t round = 0; !stop; round++) {
        // As long between two calls as a signal is on its way.
        for (volatile int turn = 0; turn < 3000; turn++) {}
        memcpy(out, &round, BYTES);
        CHECK(write(ends[1], out, BYTES) == BYTES);
        memset(in, 0xff, BYTES);
        CHECK(read(ends[0], in, BYTES) == BYTES);
        CHECK(memcmp(in, out, BYTES) == 0);
    }
    return NULL;
}

int main(int count, char **words) {
    size_t mib = count > 1 ? strtoul(words[1], NULL, 10) : 32;
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        CHECK(pthread_create(&threads[index], NULL, calls, NULL) == 0);
    for (size_t done = 0; done < mib; done++)
        memset(malloc(1 << 20), (int)done + 1, 1 << 20);
    stop = 1;
    for (int index = 0; index < THREADS; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    puts("right");
    return 0;
}
