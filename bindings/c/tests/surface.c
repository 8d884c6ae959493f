/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Calls every function of memlift.h, with what it is for and with what it refuses. A line of output per failure; the last
 * line says that there was none.
 */
#include <memlift.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define CHECK(what)                                                                            \
    do {                                                                                       \
        if (!(what)) {                                                                         \
            failures++;                                                                        \
            printf("%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, memlift_last_error()); \
        }                                                                                      \
    } while (0)

enum { PAGE = 4096, BYTES = 50 * 4096 + 0, ROOM = 64 * 4096 };

static const uint8_t KEY[32] = {1, 2, 3};
static const uint8_t NONCE[12] = {9, 8, 7};
static const uint8_t AAD[5] = "head";

static uint8_t *source, *target, *again;

static int all_zero(const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0) return 0;
    return 1;
}

static void compcpy(void) {
    memset(target, 0xee, ROOM);
    CHECK(memlift_compcpy(target, source, BYTES, NULL, 0) == MEMLIFT_OK);
    CHECK(memcmp(source, target, BYTES) == 0 && target[BYTES] == 0xee);
    CHECK(memlift_compcpy(target + 1, source, PAGE, NULL, 0) == MEMLIFT_NOT_ALIGNED);
    CHECK(memlift_compcpy(target, source + 64, PAGE, NULL, 1) == MEMLIFT_NOT_ALIGNED);
    CHECK(memlift_compcpy(NULL, source, PAGE, NULL, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_compcpy(target, NULL, PAGE, NULL, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_compcpy(NULL, NULL, 0, NULL, 0) == MEMLIFT_OK);
    CHECK(memlift_compcpy(target, source, SIZE_MAX, NULL, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_compcpy(source + PAGE, source, 2 * PAGE, NULL, 0) == MEMLIFT_OVERLAP);

    memlift_context *pack = memlift_context_new();
    memlift_outcome outcome;
    CHECK(memlift_add_pack(pack, MEMLIFT_ZLIB, MEMLIFT_FAST) == MEMLIFT_OK);
    for (int ordered = 0; ordered < 2; ordered++) {
        size_t bytes = ordered ? 16 * PAGE : BYTES;
        CHECK(memlift_compcpy(target, source, bytes, pack, ordered) == MEMLIFT_OK);
        CHECK(memlift_result(pack, &outcome) == MEMLIFT_OK);
        CHECK(outcome.read == bytes && outcome.written < bytes && outcome.has == 0);
    }
    CHECK(memlift_compcpy(target, source, BYTES, pack, 1) == MEMLIFT_BAD_CHAIN);
    /* A page of noise does not fit into a page. */
    uint32_t state = 1;
    for (size_t i = 0; i < PAGE; i++) again[i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
    CHECK(memlift_compcpy(target, again, PAGE, pack, 0) == MEMLIFT_INCOMPRESSIBLE);
    CHECK(memlift_result(pack, &outcome) == MEMLIFT_OK && outcome.written == 0);
    memlift_context_free(pack);
}

static void seals_and_opens(void) {
    memlift_context *seal = memlift_context_new();
    memlift_outcome sealed;
    size_t written = 0;
    CHECK(memlift_add_seal(seal, KEY, 15, NONCE, AAD, 5) == MEMLIFT_BAD_KEY);
    CHECK(memlift_add_seal(seal, KEY, 16, NULL, AAD, 5) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_add_seal(seal, KEY, 32, NONCE, NULL, 5) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_set_nonce(seal, NONCE) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_set_aad(seal, AAD, 5) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_add_crc32c(seal, 0) == MEMLIFT_OK);
    CHECK(memlift_add_seal(seal, KEY, 32, NONCE, AAD, 5) == MEMLIFT_OK);
    CHECK(memlift_set_tag(seal, KEY) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_bound(seal, 1001) == 1001);
    CHECK(memlift_transform(seal, source + 3, 1001, target + 5, 1000, &written) == MEMLIFT_TARGET_TOO_SMALL);
    CHECK(written == 0);
    CHECK(memlift_transform(seal, source + 3, 1001, target + 5, ROOM - 5, &written) == MEMLIFT_OK);
    CHECK(written == 1001);
    CHECK(memlift_result(seal, &sealed) == MEMLIFT_OK);
    CHECK(sealed.has == (MEMLIFT_HAS_TAG | MEMLIFT_HAS_CRC));
    CHECK(sealed.crc == memlift_crc32c(source + 3, 1001, 0));
    CHECK(sealed.crc == memlift_crc32c(source + 503, 501, memlift_crc32c(source + 3, 500, 0)));
    /* The nonce is used up. */
    CHECK(memlift_transform(seal, source, 10, target, 10, NULL) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_set_nonce(seal, KEY) == MEMLIFT_OK);
    CHECK(memlift_transform(seal, source, 10, again, 10, NULL) == MEMLIFT_OK);

    memlift_context *open = memlift_context_new();
    CHECK(memlift_add_open(open, KEY, 32, NONCE, AAD, 5, NULL) == MEMLIFT_OK);
    memset(again, 0xee, PAGE);
    CHECK(memlift_transform(open, target + 5, 1001, again, 1001, &written) == MEMLIFT_WRONG_TAG);
    CHECK(written == 0 && all_zero(again, 1001) && again[1001] == 0xee);
    CHECK(memlift_set_tag(open, sealed.tag) == MEMLIFT_OK);
    CHECK(memlift_transform(open, target + 5, 1001, again, 1001, &written) == MEMLIFT_OK);
    CHECK(written == 1001 && memcmp(again, source + 3, 1001) == 0);
    CHECK(memlift_set_aad(open, AAD, 4) == MEMLIFT_OK);
    CHECK(memlift_transform(open, target + 5, 1001, again, 1001, &written) == MEMLIFT_WRONG_TAG);
    CHECK(memlift_set_aad(open, AAD, 5) == MEMLIFT_OK);
    /* In place. */
    CHECK(memlift_transform(open, target + 5, 1001, target + 5, 1001, &written) == MEMLIFT_OK);
    CHECK(memcmp(target + 5, source + 3, 1001) == 0);
    CHECK(memlift_transform(open, target + 5, 1001, target + 6, 1001, &written) == MEMLIFT_OVERLAP);
    memlift_context_free(seal);
    memlift_context_free(open);
    memlift_context_free(NULL);
}

static void packs_and_unpacks(void) {
    for (int format = MEMLIFT_DEFLATE; format <= MEMLIFT_PAGES; format++) {
        for (int effort = MEMLIFT_FAST; effort <= MEMLIFT_ADAPTIVE; effort++) {
            memlift_context *pack = memlift_context_new(), *unpack = memlift_context_new();
            size_t packed = 0, written = 0;
            CHECK(memlift_add_pack(pack, format, effort) == MEMLIFT_OK);
            CHECK(memlift_add_unpack(unpack, format) == MEMLIFT_OK);
            CHECK(memlift_bound(pack, BYTES) <= ROOM && memlift_bound(unpack, BYTES) == SIZE_MAX);
            CHECK(memlift_transform(pack, source, BYTES, target, ROOM, &packed) == MEMLIFT_OK);
            CHECK(packed > 0 && packed < BYTES / 2);
            CHECK(memlift_transform(unpack, target, packed, again, ROOM, &written) == MEMLIFT_OK);
            CHECK(written == BYTES && memcmp(again, source, BYTES) == 0);
            memset(again, 0xee, ROOM);
            CHECK(memlift_transform(unpack, target, packed, again, BYTES - 1, &written) == MEMLIFT_TARGET_TOO_SMALL);
            CHECK(again[BYTES - 1] == 0xee);
            if (format != MEMLIFT_LZ4)
                CHECK(memlift_transform(unpack, target, packed - 1, again, ROOM, &written) == MEMLIFT_CORRUPT);
            CHECK(memlift_transform(pack, source, BYTES, target, 100, &written) == MEMLIFT_TARGET_TOO_SMALL);
            CHECK(memlift_transform(pack, NULL, 0, target, ROOM, &packed) == MEMLIFT_OK);
            CHECK(memlift_transform(unpack, target, packed, NULL, 0, &written) == MEMLIFT_OK && written == 0);
            memlift_context_free(pack);
            memlift_context_free(unpack);
        }
    }
    memlift_context *context = memlift_context_new();
    CHECK(memlift_add_pack(context, 6, MEMLIFT_DEFAULT) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_add_pack(context, -1, MEMLIFT_DEFAULT) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_add_pack(context, MEMLIFT_GZIP, 4) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_add_unpack(context, 256) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_add_pack(NULL, MEMLIFT_GZIP, MEMLIFT_FAST) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_add_crc32c(NULL, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_set_patience(NULL, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_set_patience(context, 0) == MEMLIFT_OK);
    CHECK(memlift_set_patience(context, 100) == MEMLIFT_OK);
    CHECK(memlift_set_patience(context, -1) == MEMLIFT_OK);
    CHECK(memlift_add_unpack(context, MEMLIFT_GZIP) == MEMLIFT_OK);
    CHECK(memlift_add_pack(context, MEMLIFT_GZIP, MEMLIFT_FAST) == MEMLIFT_OK);
    CHECK(memlift_transform(context, source, 10, target, ROOM, NULL) == MEMLIFT_BAD_CHAIN);
    CHECK(memlift_bound(context, 10) == SIZE_MAX);
    CHECK(memlift_result(context, NULL) == MEMLIFT_BAD_ARGUMENT);
    memlift_context_free(context);
}

static void chains(void) {
    static const uint8_t framed_nonce[12] = {1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0};
    memlift_context *there = memlift_context_new(), *back = memlift_context_new();
    memlift_outcome first, second;
    size_t written = 0, last = 0;
    CHECK(memlift_set_frames(there, 65536) == MEMLIFT_BAD_CHAIN);
    CHECK(memlift_add_crc32c(there, 0) == MEMLIFT_OK);
    CHECK(memlift_add_pack(there, MEMLIFT_DEFLATE, MEMLIFT_DEFAULT) == MEMLIFT_OK);
    CHECK(memlift_add_seal(there, KEY, 16, framed_nonce, NULL, 0) == MEMLIFT_OK);
    CHECK(memlift_set_frames(there, 5000) == MEMLIFT_BAD_CHAIN);
    CHECK(memlift_set_frames(there, 65536) == MEMLIFT_OK);
    CHECK(memlift_add_open(back, KEY, 16, framed_nonce, NULL, 0, NULL) == MEMLIFT_OK);
    CHECK(memlift_add_unpack(back, MEMLIFT_DEFLATE) == MEMLIFT_OK);
    CHECK(memlift_add_crc32c(back, 0) == MEMLIFT_OK);
    CHECK(memlift_set_frames(back, 65536) == MEMLIFT_OK);
    CHECK(memlift_bound(there, BYTES) <= ROOM);
    CHECK(memlift_transform(there, source, BYTES, target, ROOM, &written) == MEMLIFT_OK);
    CHECK(memlift_result(there, &first) == MEMLIFT_OK && first.has == MEMLIFT_HAS_CRC);
    CHECK(memlift_transform(back, target, written, again, ROOM, &last) == MEMLIFT_OK);
    CHECK(memlift_result(back, &second) == MEMLIFT_OK && second.crc == first.crc);
    CHECK(last == BYTES && memcmp(again, source, BYTES) == 0);
    /* The last of four blocks is changed: those before it go, too, and nothing of it was ever written. */
    target[written - 1] ^= 1;
    memset(again, 0xee, ROOM);
    CHECK(memlift_transform(back, target, written, again, ROOM, &last) == MEMLIFT_WRONG_TAG);
    CHECK(all_zero(again, 3 * 65536) && again[3 * 65536] == 0xee);
    char text[400];
    int length = memlift_explain(there, 1 << 20, text, sizeof text);
    CHECK(length > 20 && strlen(text) == (size_t)(length < 399 ? length : 399));
    CHECK(memlift_explain(there, 1 << 20, text, 5) > 20 && strlen(text) == 4);
    CHECK(memlift_explain(there, 1 << 20, NULL, 0) > 20);
    CHECK(memlift_explain(there, 1 << 20, NULL, 9) == MEMLIFT_BAD_ARGUMENT);
    memlift_context_free(there);
    memlift_context_free(back);
}

static void pieces(void) {
    uint8_t tag[16], tag_at[16], wrong[16];
    memlift_sealer *sealer = memlift_sealer_new(KEY, 16, NONCE, AAD, 5);
    CHECK(sealer != NULL);
    for (size_t at = 0; at < BYTES; at += 777) {
        size_t bytes = BYTES - at < 777 ? BYTES - at : 777;
        CHECK(memlift_sealer_push(sealer, source + at, target + at, bytes) == MEMLIFT_OK);
    }
    CHECK(memlift_sealer_at(sealer, 0, source, again, 16) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_sealer_push(sealer, NULL, target, 16) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_sealer_push(NULL, source, target, 16) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_sealer_push(sealer, source, source + 1, 16) == MEMLIFT_OVERLAP);
    CHECK(memlift_sealer_finish(sealer, NULL) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_sealer_finish(sealer, tag) == MEMLIFT_OK);
    CHECK(memlift_sealer_finish(sealer, tag) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_sealer_push(sealer, source, target, 16) == MEMLIFT_BAD_ORDER);
    memlift_sealer_free(sealer);
    memlift_sealer_free(NULL);

    /* The same by pages, backwards. */
    sealer = memlift_sealer_new(KEY, 16, NONCE, AAD, 5);
    for (size_t at = BYTES; at > 0; at -= PAGE) {
        size_t begin = at - PAGE;
        CHECK(memlift_sealer_at(sealer, begin, source + begin, again + begin, PAGE) == MEMLIFT_OK);
        if (begin == PAGE) CHECK(memlift_sealer_finish(sealer, tag_at) == MEMLIFT_BAD_ORDER);
    }
    CHECK(memlift_sealer_at(sealer, 0, source, again, 16) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_sealer_at(sealer, 7, source, again, 16) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_sealer_finish(sealer, tag_at) == MEMLIFT_OK);
    memlift_sealer_free(sealer);
    CHECK(memcmp(again, target, BYTES) == 0 && memcmp(tag, tag_at, 16) == 0);

    for (int in_order = 0; in_order < 2; in_order++) {
        for (int right = 0; right < 2; right++) {
            memset(again, 0xee, ROOM);
            memlift_opener *opener = memlift_opener_new(KEY, 16, NONCE, AAD, 5, again, BYTES);
            for (size_t i = 0; i < BYTES / PAGE; i++) {
                size_t at = in_order ? i * PAGE : (i * 7 % (BYTES / PAGE)) * PAGE;
                CHECK((in_order ? memlift_opener_push(opener, target + at, PAGE)
                                : memlift_opener_at(opener, at, target + at, PAGE)) == MEMLIFT_OK);
            }
            CHECK((in_order ? memlift_opener_push(opener, target, 1)
                            : memlift_opener_at(opener, BYTES, target, 1)) == MEMLIFT_TARGET_TOO_SMALL);
            CHECK(memlift_opener_at(opener, UINT64_MAX - 15, target, 16) == MEMLIFT_TARGET_TOO_SMALL);
            memcpy(wrong, tag, 16);
            wrong[15] ^= (uint8_t)(1 - right);
            CHECK(memlift_opener_finish(opener, wrong) == (right ? MEMLIFT_OK : MEMLIFT_WRONG_TAG));
            memlift_opener_free(opener);
            CHECK(right ? memcmp(again, source, BYTES) == 0 : all_zero(again, BYTES));
            CHECK(again[BYTES] == 0xee);
        }
    }
    /* Freed before its end: nothing stays. */
    memlift_opener *opener = memlift_opener_new(KEY, 16, NONCE, AAD, 5, again, BYTES);
    CHECK(memlift_opener_push(opener, target, 100) == MEMLIFT_OK);
    memlift_opener_free(opener);
    CHECK(all_zero(again, BYTES));
    memlift_opener_free(NULL);
    CHECK(memlift_opener_new(KEY, 16, NONCE, AAD, 5, NULL, 5) == NULL);
    CHECK(memlift_opener_new(KEY, 17, NONCE, AAD, 5, again, 5) == NULL);
    CHECK(memlift_sealer_new(KEY, 16, NULL, AAD, 5) == NULL);
    /* An empty message has a tag as well. */
    sealer = memlift_sealer_new(KEY, 32, NONCE, NULL, 0);
    CHECK(memlift_sealer_finish(sealer, tag) == MEMLIFT_OK);
    memlift_sealer_free(sealer);
    opener = memlift_opener_new(KEY, 32, NONCE, NULL, 0, NULL, 0);
    CHECK(memlift_opener_finish(opener, tag) == MEMLIFT_OK);
    memlift_opener_free(opener);
}

static void packs_in_pieces(void) {
    memlift_packer *packer = memlift_packer_new(MEMLIFT_GZIP, MEMLIFT_SMALL);
    size_t packed = 0, from = 0, read, written;
    int code = MEMLIFT_OK;
    CHECK(packer != NULL);
    while (from < BYTES || code == MEMLIFT_MORE) {
        size_t bytes = BYTES - from < 1000 ? BYTES - from : 1000;
        code = memlift_packer_push(packer, source + from, bytes, &read, target + packed, 300, &written,
                                   from + bytes == BYTES ? MEMLIFT_FLUSH_FINISH : MEMLIFT_FLUSH_NONE);
        CHECK(code == MEMLIFT_OK || code == MEMLIFT_MORE);
        from += read;
        packed += written;
    }
    CHECK(memlift_packer_push(packer, source, 0, NULL, target, 1, &written, 0) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_packer_push(packer, source, 1, &read, target, 1, &written, 4) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_packer_push(packer, source, 9, &read, source + 8, 9, &written, 0) == MEMLIFT_OVERLAP);
    CHECK(memlift_packer_push(NULL, source, 1, &read, target, 1, &written, 0) == MEMLIFT_BAD_ARGUMENT);
    memlift_packer_free(packer);
    memlift_packer_free(NULL);
    memlift_context *unpack = memlift_context_new();
    CHECK(memlift_add_unpack(unpack, MEMLIFT_GZIP) == MEMLIFT_OK);
    CHECK(memlift_transform(unpack, target, packed, again, ROOM, &written) == MEMLIFT_OK);
    CHECK(written == BYTES && memcmp(again, source, BYTES) == 0);
    memlift_context_free(unpack);
    CHECK(memlift_packer_new(MEMLIFT_ZSTD, MEMLIFT_FAST) == NULL);
    CHECK(memlift_packer_new(MEMLIFT_GZIP, MEMLIFT_ADAPTIVE) == NULL);
    CHECK(memlift_packer_new(77, MEMLIFT_FAST) == NULL);
}

int main(void) {
    void *memory[3];
    for (int i = 0; i < 3; i++)
        if (posix_memalign(&memory[i], PAGE, ROOM) != 0) return 1;
    source = memory[0];
    target = memory[1];
    again = memory[2];
    for (size_t i = 0; i < ROOM; i++) source[i] = (uint8_t)(i / 3 % 251 + i / 1000);
    CHECK(memlift_crc32c("123456789", 9, 0) == 0xe3069283u);
    CHECK(memlift_crc32c(NULL, 0, 0) == 0 && memlift_crc32c(NULL, 5, 0) == 0);
    CHECK(strlen(memlift_error(-77)) > 5 && strlen(memlift_version()) >= 5);
    compcpy();
    seals_and_opens();
    packs_and_unpacks();
    chains();
    pieces();
    packs_in_pieces();
    for (int i = 0; i < 3; i++) free(memory[i]);
    if (failures == 0) printf("all as the header says\n");
    return failures != 0;
}
