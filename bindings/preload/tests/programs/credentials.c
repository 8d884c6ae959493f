// SPDX-License-Identifier: Apache-2.0 OR MIT
// A program that has more memory than its budget gives up its rights: glibc asks every thread to follow, the pager's own too.
#include <unistd.h>
#include "check.h"

int main(int count, char **words) {
    size_t mib = count > 1 ? strtoul(words[1], NULL, 10) : 32;
    char **blocks = malloc(mib * sizeof *blocks);
    for (size_t at = 0; at < mib; at++)
        memset(blocks[at] = malloc(1 << 20), (int)at + 1, 1 << 20);
    uid_t user = getuid() == 0 ? 65534 : getuid();
    gid_t group = getuid() == 0 ? 65534 : getgid();
    CHECK(setgid(group) == 0 && setuid(user) == 0);
    CHECK(getuid() == user && getgid() == group);
    for (size_t at = 0; at < mib; at++)
        for (size_t place = 0; place < 1 << 20; place += 4096)
            CHECK(blocks[at][place] == (char)(at + 1));
    puts("right");
    return 0;
}
