// SPDX-License-Identifier: Apache-2.0 OR MIT
// A program that closes every descriptor, as daemons do, and puts files on numbers of its choice.
#include "check.h"
#include <fcntl.h>

int main(int argc, char **argv) {
    size_t pressure = (argc > 1 ? atoi(argv[1]) : 64) * MIB, bytes = 16 * MIB;
    unsigned char *p = malloc(bytes); fill(p, bytes, 1); press(pressure); CHECK(same(p, bytes, 1));
    for (int fd = 3; fd < 4096; fd++) close(fd);
    press(pressure); CHECK(same(p, bytes, 1));
    CHECK(close_range(3, ~0u, 0) == 0); closefrom(3);
    press(pressure); CHECK(same(p, bytes, 1));
    int null = open("/dev/null", O_RDWR); CHECK(null >= 3);
    for (int fd = 4; fd < 1100; fd++) { int got = dup2(null, fd); CHECK(got == fd || (got == -1 && errno == EBUSY)); }
    press(pressure); CHECK(same(p, bytes, 1));
    closefrom(3); CHECK(open("/dev/null", O_RDWR) >= 3);
    puts("right");
    return 0;
}
