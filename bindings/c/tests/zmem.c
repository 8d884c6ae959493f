/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Blocks larger than the total keep their contents; pinned ones go through system calls; what is refused. */
#include <errno.h>
#include <memlift_zmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static uint64_t expected(size_t index) { return index / 512 * 1000 + index % 512 % 97; }

int main(void) {
    const size_t bytes = (size_t)192 << 20, count = bytes / sizeof(uint64_t);
    void *block = NULL;
    memlift_zmem_pins *pins = NULL;
    memlift_zmem_numbers_t numbers;
    uint64_t *words;
    int ends[2];

    CHECK(memlift_zmem_alloc(4096, &block) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_zmem_numbers(&numbers) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_zmem_enter(NULL, 1 << 20, NULL) == MEMLIFT_BAD_ARGUMENT);
    int entered = memlift_zmem_enter("c-test", (uint64_t)96 << 20, NULL);
    if (entered == MEMLIFT_FILE_FAILED) {
        printf("no way to handle faults here: %s\nall as the header says\n", memlift_last_error());
        return 0;
    }
    CHECK(entered == MEMLIFT_OK);
    CHECK(memlift_zmem_enter("c-test", (uint64_t)96 << 20, NULL) == MEMLIFT_BAD_ORDER);
    CHECK(memlift_zmem_alloc(bytes, NULL) == MEMLIFT_BAD_ARGUMENT);
    CHECK(memlift_zmem_alloc((size_t)-1, &block) == MEMLIFT_NO_MEMORY);
    CHECK(memlift_zmem_alloc(bytes, &block) == MEMLIFT_OK);
    CHECK((uintptr_t)block % 64 == 0);
    words = block;
    for (size_t i = 0; i < count; i += 511) CHECK(words[i] == 0);
    for (size_t i = 0; i < count; i++) words[i] = expected(i);
    for (size_t i = 0; i < count; i++) CHECK(words[i] == expected(i));
    CHECK(memlift_zmem_numbers(&numbers) == MEMLIFT_OK);
    CHECK(numbers.total_bytes == (int64_t)96 << 20 && numbers.mapped_bytes > bytes);
    CHECK(numbers.present_bytes + numbers.store_bytes <= (uint64_t)96 << 20 && numbers.pages_packed > 10000);

    CHECK(pipe(ends) == 0);
    CHECK(memlift_zmem_pin(words, 4096, 0, &pins) == MEMLIFT_OK);
    CHECK(write(ends[1], words, 4096) == 4096);
    memlift_zmem_unpin(pins);
    CHECK(memlift_zmem_pin(words + 1000000, 4096, 1, &pins) == MEMLIFT_OK);
    CHECK(read(ends[0], words + 1000000, 4096) == 4096);
    memlift_zmem_unpin(pins);
    memlift_zmem_unpin(NULL);
    for (size_t i = 0; i < 512; i++) CHECK(words[1000000 + i] == expected(i));

    CHECK(memlift_zmem_set_total((uint64_t)128 << 20) == MEMLIFT_OK);
    CHECK(memlift_zmem_resize(&block, bytes / 2) == MEMLIFT_OK);
    words = block;
    for (size_t i = 0; i < 1000000; i += 7) CHECK(words[i] == expected(i));
    CHECK(memlift_zmem_resize(&block, bytes) == MEMLIFT_OK);
    words = block;
    CHECK(words[3] == expected(3) && words[count - 1] == 0);
    memlift_zmem_free(block);
    memlift_zmem_free(NULL);
    CHECK(memlift_zmem_numbers(&numbers) == MEMLIFT_OK && numbers.mapped_bytes == 0);
    printf("all as the header says\n");
    return 0;
}
