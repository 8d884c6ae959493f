// SPDX-License-Identifier: Apache-2.0 OR MIT
// Small and large objects far beyond the budget, checked, freed, made again.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>

static uint64_t mix(uint64_t x) { x ^= x >> 31; x *= 0x9e3779b97f4a7c15ull; x ^= x >> 29; return x; }

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? atoi(argv[1]) : 64;
    size_t count = mib * 1024 * 2;              // 512 bytes each
    uint64_t **objects = malloc(count * sizeof *objects);
    for (size_t i = 0; i < count; i++) {
        objects[i] = malloc(512);
        for (int w = 0; w < 64; w++) objects[i][w] = mix(i) & (w % 4 ? 0xffff : ~0ull);
    }
    for (int round = 0; round < 3; round++) {
        for (size_t n = 0; n < count; n++) {
            size_t i = round == 1 ? mix(n) % count : n;
            for (int w = 0; w < 64; w++)
                if (objects[i][w] != (mix(i) & (w % 4 ? 0xffff : ~0ull))) {
                    printf("object %zu word %d: %llx\n", i, w, (unsigned long long)objects[i][w]);
                    return 1;
                }
        }
        for (size_t i = round; i < count; i += 3) {
            objects[i] = realloc(objects[i], 700);
            for (int w = 0; w < 64; w++) if (objects[i][w] != (mix(i) & (w % 4 ? 0xffff : ~0ull))) { printf("after realloc %zu\n", i); return 1; }
            free(objects[i]);
            objects[i] = calloc(64, 8);
            for (int w = 0; w < 64; w++) if (objects[i][w]) { puts("calloc gave what was not zero"); return 1; }
            for (int w = 0; w < 64; w++) objects[i][w] = mix(i) & (w % 4 ? 0xffff : ~0ull);
        }
    }
    size_t large = mib << 20;
    unsigned char *block = malloc(large);
    for (size_t i = 0; i < large; i += 4096) memset(block + i, (int)(i >> 12), 4096);
    block = realloc(block, large + (large >> 1));
    for (size_t i = 0; i < large; i++) if (block[i] != (unsigned char)(i >> 12)) { printf("byte %zu\n", i); return 1; }
    free(block);
    for (size_t i = 0; i < count; i++) free(objects[i]);
    puts("right");
    return 0;
}
