// SPDX-License-Identifier: Apache-2.0 OR MIT
// Threads that make, write, read, move and free memory at once, beyond the budget.
#include "check.h"
#include <pthread.h>

static size_t share;
static void *work(void *at) {
    uint64_t seed = (uint64_t)at + 1, state = seed;
    enum { SLOTS = 64 };
    unsigned char *slots[SLOTS] = { 0 }; size_t sizes[SLOTS] = { 0 }; uint64_t seeds[SLOTS];
    for (int round = 0; round < 1500; round++) {
        state = mixed(state + round); size_t slot = state % SLOTS;
        if (slots[slot]) {
            CHECK(same(slots[slot], sizes[slot], seeds[slot]));
            if (state >> 20 & 1) { size_t bytes = sizes[slot] * 2 % (share / SLOTS * 2) + 1; unsigned char *p = realloc(slots[slot], bytes); CHECK(p); CHECK(same(p, bytes < sizes[slot] ? bytes : sizes[slot], seeds[slot])); slots[slot] = p; }
            free(slots[slot]); slots[slot] = NULL;
        } else {
            sizes[slot] = mixed(state) % (share / SLOTS * 2) + 1; seeds[slot] = state; slots[slot] = malloc(sizes[slot]); CHECK(slots[slot]);
            fill(slots[slot], sizes[slot], seeds[slot]);
        }
    }
    for (int slot = 0; slot < SLOTS; slot++) if (slots[slot]) { CHECK(same(slots[slot], sizes[slot], seeds[slot])); free(slots[slot]); }
    return NULL;
}
int main(int argc, char **argv) {
    size_t count = argc > 2 ? atoi(argv[2]) : 4; share = (argc > 1 ? atoi(argv[1]) : 64) * MIB / count;
    pthread_t threads[64]; for (size_t t = 0; t < count; t++) pthread_create(&threads[t], NULL, work, (void *)t);
    for (size_t t = 0; t < count; t++) pthread_join(threads[t], NULL);
    puts("right");
    return 0;
}
