// SPDX-License-Identifier: Apache-2.0 OR MIT
// What one core and the memory give to walks along the chains of a hash table: the limit of a memory node.
//
// Flow     each question: a bucket's address and a key ──▶ along the chain to the key ──▶ the sum of the values found
// Limits   `width` walks in turn, one step each; the line of the next step is fetched while the others take theirs
// Layout   a bucket is a word, the address of its first node; a node: 0 next, bit 0 of it: removed · 8 key · 24 value;
//          addresses count from `base`, which is mapped at `host`
// Not here anything under test: no packets, no checks. This file must stay stupid.

#include <stddef.h>
#include <stdint.h>

#define WIDTH_MAX 128

struct question {
    uint64_t bucket;
    uint64_t key;
};

struct cursor {
    const uint64_t *place;
    uint64_t key;
    int inside;
};

uint64_t memlift_reference_walks(const unsigned char *host, uint64_t base, const struct question *questions, size_t count,
                                 size_t width) {
    struct cursor cursors[WIDTH_MAX];
    size_t taken = 0, live = 0;
    uint64_t sum = 0;
    if (width > WIDTH_MAX) width = WIDTH_MAX;
    while (live < width && taken < count) {
        cursors[live] = (struct cursor){(const uint64_t *)(host + (questions[taken].bucket - base)), questions[taken].key, 0};
        __builtin_prefetch(cursors[live++].place);
        taken++;
    }
    while (live > 0) {
        for (size_t at = 0; at < live;) {
            struct cursor *cursor = &cursors[at];
            const uint64_t *place = cursor->place;
            uint64_t next = place[0] & ~1ull;
            int found = cursor->inside && place[1] == cursor->key && !(place[0] & 1);
            if (!found && next != 0) {
                cursor->place = (const uint64_t *)(host + (next - base));
                cursor->inside = 1;
                __builtin_prefetch(cursor->place);
                at++;
                continue;
            }
            if (found) sum += place[3];
            if (taken < count) {
                *cursor = (struct cursor){(const uint64_t *)(host + (questions[taken].bucket - base)), questions[taken].key, 0};
                __builtin_prefetch(cursor->place);
                taken++;
                at++;
            } else {
                *cursor = cursors[--live];
            }
        }
    }
    return sum;
}
