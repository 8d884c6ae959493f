/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A claim: where it does not hold, what and why is said, and the function that makes it ends with 1. */
#ifndef MEMLIFT_TESTS_CHECK_H
#define MEMLIFT_TESTS_CHECK_H

#include <memlift.h>
#include <stdio.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #what, memlift_last_error()); \
            return 1; \
        } \
    } while (0)

#endif
