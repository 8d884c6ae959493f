/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * CompCpy as in the paper: pages that are sealed while they are copied, and opened again.
 *
 *     cc -std=c11 -I bindings/c/include bindings/c/examples/compcpy.c -L target/release -lmemlift_c -o compcpy
 *     LD_LIBRARY_PATH=target/release ./compcpy
 *
 * Do not copy the key: it is in the open here.
 */
#include <memlift.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, SIZE = 16 * PAGE };

static void must(int code, const char *what) {
    if (code != MEMLIFT_OK) {
        fprintf(stderr, "%s: %s\n", what, memlift_last_error());
        exit(1);
    }
}

int main(void) {
    const uint8_t key[16] = "sixteen bytes..";
    const uint8_t nonce[12] = {1};
    const uint8_t aad[] = "page 0 to 15";
    uint8_t *sbuff = aligned_alloc(PAGE, SIZE);
    uint8_t *dbuff = aligned_alloc(PAGE, SIZE);
    uint8_t *again = aligned_alloc(PAGE, SIZE);
    if (sbuff == NULL || dbuff == NULL || again == NULL) return 1;
    for (size_t i = 0; i < SIZE; i++) sbuff[i] = (uint8_t)(i / 7);

    memlift_context *seal = memlift_context_new();
    must(memlift_add_crc32c(seal, 0), "checksum of the plain bytes");
    must(memlift_add_seal(seal, key, sizeof key, nonce, aad, sizeof aad), "seal");
    must(memlift_compcpy(dbuff, sbuff, SIZE, seal, 0), "copy, check and seal");
    memlift_outcome sealed;
    must(memlift_result(seal, &sealed), "what came of it");

    memlift_context *open = memlift_context_new();
    must(memlift_add_open(open, key, sizeof key, nonce, aad, sizeof aad, sealed.tag), "open");
    must(memlift_add_crc32c(open, 0), "checksum");
    must(memlift_compcpy(again, dbuff, SIZE, open, 1), "copy, open and check, in order");
    memlift_outcome opened;
    must(memlift_result(open, &opened), "what came of it");

    int same = memcmp(sbuff, again, SIZE) == 0 && sealed.crc == opened.crc;
    printf("memlift %s: %d bytes sealed, CRC-32C %08x, opened again: %s\n", memlift_version(), (int)SIZE,
           (unsigned)sealed.crc, same ? "the same" : "DIFFERENT");
    if (memlift_compcpy(dbuff + 64, sbuff, PAGE, NULL, 0) == MEMLIFT_NOT_ALIGNED)
        printf("an address inside a page: %s\n", memlift_last_error());

    memlift_context_free(seal);
    memlift_context_free(open);
    free(sbuff);
    free(dbuff);
    free(again);
    return same ? 0 : 1;
}
