// SPDX-License-Identifier: Apache-2.0 OR MIT
// Threads that do nothing but calls while memory becomes short: each call is made once, and its result is its own.
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include "check.h"

#define THREADS 4
#define BYTES 3

static volatile int stop;

// The instruction itself, in the program's own text: what the filter traps.
static long call(long number, long a, const void *b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static void *calls(void *unused) {
    (void)unused;
    int ends[2];
    CHECK(pipe(ends) == 0);
    char *out = malloc(4096), *in = malloc(4096);
    for (uint32_t round = 0; !stop; round++) {
        memcpy(out, &round, BYTES);
        CHECK(call(SYS_write, ends[1], out, BYTES) == BYTES);
        memset(in, 0xff, BYTES);
        CHECK(call(SYS_read, ends[0], in, BYTES) == BYTES);
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
