// SPDX-License-Identifier: Apache-2.0 OR MIT
// A program that forbids itself a system call, before memory is short (early) or after: `sandbox WHEN CALL ERRNO MIB`.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static void forbid(unsigned call, unsigned number) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | number),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof rules / sizeof *rules, rules };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}
int main(int argc, char **argv) {
    CHECK(argc > 4); int early = !strcmp(argv[1], "early"); unsigned call = (unsigned)atoi(argv[2]), number = (unsigned)atoi(argv[3]);
    size_t pressure = atoi(argv[4]) * MIB;
    if (early) forbid(call, number);
    press(pressure);
    if (!early) forbid(call, number);
    for (int round = 0; round < 3; round++) press(pressure);
    puts("right");
    return 0;
}
