// SPDX-License-Identifier: Apache-2.0 OR MIT
// A fork, then one side writes (or both): each keeps its own contents, and no copy comes before there is room for it.
// copies MIB ROUNDS WRITER [KEEP]: WRITER is parent, child, both or chain; the other side reads meanwhile.
#include "check.h"
#include <string.h>
#include <sys/wait.h>

static unsigned char *area;
static size_t area_bytes;

// Half of each page does not pack.
static void write_all(unsigned seed) {
    for (size_t page = 0; page < area_bytes; page += 4096) {
        uint64_t state = mixed(page + seed);
        for (size_t i = 0; i < 2048; i += 8) { state = mixed(state + i); memcpy(area + page + i, &state, 8); }
        memset(area + page + 2048, (int)(seed + page / 4096), 2048);
    }
}
static int is_all(unsigned seed) {
    for (size_t page = 0; page < area_bytes; page += 4096) {
        uint64_t state = mixed(page + seed);
        for (size_t i = 0; i < 2048; i += 8) { state = mixed(state + i); if (memcmp(area + page + i, &state, 8)) return 0; }
        for (size_t i = 2048; i < 4096; i++) if (area[page + i] != (unsigned char)(seed + page / 4096)) return 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    CHECK(argc > 3);
    area_bytes = (size_t)atoi(argv[1]) * MIB;
    int rounds = atoi(argv[2]);
    int parent_writes = strcmp(argv[3], "child") != 0, child_writes = strcmp(argv[3], "parent") != 0, chain = strcmp(argv[3], "chain") == 0;
    area = malloc(area_bytes); CHECK(area);
    write_all(0);
    unsigned seed = 0;
    for (int round = 0; round < rounds; round++) {
        pid_t child = fork(); CHECK(child >= 0);
        if (child == 0) {
            if (chain) { pid_t grandchild = fork(); CHECK(grandchild >= 0); if (grandchild == 0) { CHECK(is_all(seed)); write_all(7000 + round); CHECK(is_all(7000 + round)); _exit(0); }
                write_all(8000 + round); int status; CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0); CHECK(is_all(8000 + round)); _exit(0); }
            CHECK(is_all(seed));
            if (child_writes) { write_all(9000 + round); CHECK(is_all(9000 + round)); }
            _exit(0);
        }
        unsigned before = seed;
        if (parent_writes) write_all(++seed);
        CHECK(is_all(seed));
        int status; CHECK(waitpid(child, &status, 0) == child);
        if (status) { fprintf(stderr, "round %d from %u: status %x\n", round, before, status); return 1; }
        CHECK(is_all(seed));
    }
    puts("right");
    return 0;
}
