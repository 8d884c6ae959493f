// SPDX-License-Identifier: Apache-2.0 OR MIT
// Counts what a call executes that makes stores durable: fences, flushes, non-temporal stores, locked instructions.
//
// Flow   fork ─▶ the child prepares, stops, calls, stops ─▶ the parent steps it from the first stop to the second and looks at the
//        bytes of every instruction before it runs ─▶ the same around nothing is subtracted
// Decode legacy prefixes and REX, then the opcodes 0F AE (fences and flushes), 0F C3, 0F 2B and 0F E7 (non-temporal stores, also
//        under VEX and EVEX); anything else is only counted
// Owner  the child is killed, whatever happened. The child's stores reach the pool, which is shared: ask for steps last.

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

#define STEPS_MAX 50000000

static void classify(const unsigned char *code, struct steps *steps, int *pending) {
    int locked = 0, at = 0;
    for (; at < 8; at++) {
        unsigned char byte = code[at];
        if (byte == 0xf0)
            locked = 1;
        else if (byte != 0x66 && byte != 0xf2 && byte != 0xf3 && byte != 0x2e && byte != 0x36 && byte != 0x3e &&
                 byte != 0x26 && byte != 0x64 && byte != 0x65)
            break;
    }
    steps->locked += (uint64_t)locked;
    if ((code[at] & 0xf0) == 0x40) at++;
    unsigned char opcode, operand;
    if (code[at] == 0x0f) {
        opcode = code[at + 1], operand = code[at + 2];
    } else if (code[at] == 0xc5) {
        opcode = code[at + 2], operand = code[at + 3];
        if (opcode != 0xe7 && opcode != 0x2b) return;
    } else if (code[at] == 0xc4 && (code[at + 1] & 0x1f) == 1) {
        opcode = code[at + 3], operand = code[at + 4];
        if (opcode != 0xe7 && opcode != 0x2b) return;
    } else if (code[at] == 0x62 && (code[at + 1] & 0x07) == 1) {
        opcode = code[at + 4], operand = code[at + 5];
        if (opcode != 0xe7 && opcode != 0x2b) return;
    } else {
        return;
    }
    int field = operand >> 3 & 7, is_register = operand >> 6 == 3;
    if (opcode == 0xae && is_register && (field == 6 || field == 7)) {
        steps->fences++;
        steps->loaded += (uint64_t)*pending;
        *pending = 0;
    } else if (opcode == 0xae && !is_register && (field == 7 || (field == 6 && at > 0 && code[0] == 0x66))) {
        steps->flushes++;
        *pending = 1;
    } else if (!is_register && (opcode == 0xe7 || opcode == 0x2b || opcode == 0xc3)) {
        steps->streams++;
        *pending = 1;
    }
}

static int stopped_by(pid_t child, int signal) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 0;
    return WIFSTOPPED(status) && WSTOPSIG(status) == signal;
}

static int step_through(pid_t child, struct steps *steps) {
    memset(steps, 0, sizeof *steps);
    if (!stopped_by(child, SIGSTOP)) return 1;
    int pending = 0;
    unsigned long last = 0;
    while (steps->instructions < STEPS_MAX) {
        unsigned long at = (unsigned long)ptrace(PTRACE_PEEKUSER, child, offsetof(struct user, regs.rip), 0);
        if (at != last) {
            unsigned char code[16];
            errno = 0;
            long low = ptrace(PTRACE_PEEKTEXT, child, at, 0), high = ptrace(PTRACE_PEEKTEXT, child, at + 8, 0);
            if (errno) return 1;
            memcpy(code, &low, 8);
            memcpy(code + 8, &high, 8);
            classify(code, steps, &pending);
            steps->instructions++;
        }
        last = at;
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0)) return 1;
        int status;
        if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) return 1;
        if (WSTOPSIG(status) == SIGSTOP) return 0;
        if (WSTOPSIG(status) != SIGTRAP) return 1;
    }
    return 1;
}

static int traced(void (*prepare)(void *), void (*call)(void *), void *state, struct steps *steps) {
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        prepare(state);
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(1);
        raise(SIGSTOP);
        if (call) call(state);
        raise(SIGSTOP);
        _exit(0);
    }
    int result = step_through(child, steps);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return result;
}

static void nothing(void *state) { (void)state; }

int count_steps(void (*prepare)(void *), void (*call)(void *), void *state, struct steps *steps) {
    struct steps empty;
    if (traced(nothing, NULL, state, &empty) || traced(prepare, call, state, steps)) return 1;
    steps->instructions -= empty.instructions;
    steps->fences -= empty.fences;
    steps->loaded -= empty.loaded;
    steps->locked -= empty.locked;
    return 0;
}
