// SPDX-License-Identifier: Apache-2.0 OR MIT
// Promises of the kernel about memory beyond its contents: advice about dumps and forks, moves that leave the old place mapped, the
// pages that are resident, and the codes of wrong accesses. Each part runs by its name.
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

static size_t pressure;
static unsigned char *map(size_t bytes) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(at != MAP_FAILED); return at;
}
static void push_out(void) { for (int round = 0; round < 2; round++) press(pressure); }
static void in_child(void (*body)(void)) {
    pid_t child = fork(); CHECK(child >= 0);
    if (child == 0) { body(); _exit(0); }
    int status; CHECK(waitpid(child, &status, 0) == child); CHECK(status == 0);
}

static unsigned char *at;

// The flags of the mapping that holds an address, as smaps has them.
static int has_flag(unsigned char *wanted, const char *flag) {
    FILE *file = fopen("/proc/self/smaps", "r"); char line[1024]; int inside = 0, found = -1; CHECK(file);
    while (fgets(line, sizeof line, file)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) inside = (unsigned long)wanted >= from && (unsigned long)wanted < to;
        else if (inside && !strncmp(line, "VmFlags:", 8)) found = strstr(line, flag) != NULL;
    }
    fclose(file); return found;
}
static void dump(void) {
    at = map(MIB); fill(at, MIB, 1);
    CHECK(has_flag(at, " dd") == 0); CHECK(madvise(at + 65536, 131072, MADV_DONTDUMP) == 0);
    push_out();
    CHECK(has_flag(at, " dd") == 0 && has_flag(at + 65536, " dd") == 1 && has_flag(at + 65536 + 131072, " dd") == 0);
    CHECK(same(at, MIB, 1)); push_out();
    unsigned char *late = map(MIB); fill(late, MIB, 2); CHECK(madvise(late, MIB, MADV_DONTDUMP) == 0 && has_flag(late, " dd") == 1);
    CHECK(madvise(at + 65536, 131072, MADV_DODUMP) == 0 && has_flag(at + 65536, " dd") == 0); CHECK(same(at, MIB, 1) && same(late, MIB, 2));
    // Memory that is mapped at the same place later is dumped.
    CHECK(munmap(late, MIB) == 0); CHECK(mmap(late, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == late);
    CHECK(has_flag(late, " dd") == 0);
}

static void is_wiped(void) {
    for (size_t i = 65536; i < 131072; i++) CHECK(at[i] == 0);
    CHECK(same(at, 65536, 1)); fill(at + 65536, 65536, 9);
}
static void child_of_child(void) { is_wiped(); in_child(is_wiped); CHECK(same(at + 65536, 65536, 9)); }
static void kept(void) { CHECK(same(at, 65536, 1) && same(at + 65536, 65536, 2)); }
static void wipe(void) {
    at = map(MIB); fill(at, 65536, 1); fill(at + 65536, 65536, 2);
    CHECK(madvise(at + 65536, 65536, MADV_WIPEONFORK) == 0);
    in_child(child_of_child); kept();
    push_out(); in_child(child_of_child); kept();
    CHECK(madvise(at + 65536, 65536, MADV_KEEPONFORK) == 0); in_child(kept); push_out(); in_child(kept);
    unsigned char *other = map(MIB); CHECK(madvise(other, MIB, MADV_WIPEONFORK) == 0 && munmap(other, MIB) == 0);
    CHECK(madvise(other, MIB, MADV_WIPEONFORK) == -1 && errno == ENOMEM);
    CHECK(mmap(other, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == other);
    fill(other, 65536, 1); fill(other + 65536, 65536, 2); at = other; in_child(kept);
}

static sigjmp_buf back;
static volatile int code; static void *volatile where;
static void on_fault(int signal, siginfo_t *info, void *context) { (void)context; code = info->si_code; where = info->si_addr; siglongjmp(back, signal); }
static int touched(unsigned char *address, int write) {
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, old[2]; code = 0;
    CHECK(sigaction(SIGSEGV, &action, &old[0]) == 0 && sigaction(SIGBUS, &action, &old[1]) == 0);
    int signal = sigsetjmp(back, 1);
    if (signal == 0) { if (write) *(volatile unsigned char *)address = 1; else (void)*(volatile unsigned char *)address; }
    CHECK(sigaction(SIGSEGV, &old[0], NULL) == 0 && sigaction(SIGBUS, &old[1], NULL) == 0);
    return signal;
}

static void is_gone(void) {
    unsigned char vector[16];
    CHECK(touched(at + 65536, 0) == SIGSEGV && code == SEGV_MAPERR); CHECK(mincore(at + 65536, 65536, vector) == -1 && errno == ENOMEM);
    CHECK(same(at, 65536, 1) && same(at + 131072, 65536, 3)); press(pressure / 2); CHECK(same(at, 65536, 1) && same(at + 131072, 65536, 3));
}
static void absent(void) {
    at = map(MIB); fill(at, 65536, 1); fill(at + 65536, 65536, 2); fill(at + 131072, 65536, 3);
    CHECK(madvise(at + 65536, 65536, MADV_DONTFORK) == 0);
    in_child(is_gone); kept(); push_out(); in_child(is_gone); kept();
    CHECK(madvise(at + 65536, 65536, MADV_DOFORK) == 0); in_child(kept);
}

static void move(void) {
    for (int round = 0; round < 3; round++) {
        at = map(MIB); fill(at, MIB, 5 + round); if (round) push_out();
        if (round == 2) CHECK(same(at + MIB / 2, MIB / 2, 7 + MIB / 2 / 64));
        unsigned char *to = mremap(at, MIB, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        CHECK(to != MAP_FAILED && to != at); CHECK(same(to, MIB, 5 + round));
        for (size_t i = 0; i < MIB; i += 512) CHECK(at[i] == 0);
        fill(at, MIB, 70); push_out(); CHECK(same(at, MIB, 70) && same(to, MIB, 5 + round));
        unsigned char *place = map(MIB); fill(place, MIB, 3);
        CHECK(mremap(to, MIB, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, place) == place); CHECK(same(place, MIB, 5 + round) && to[4096] == 0);
        CHECK(mremap(to, MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) == MAP_FAILED && errno == EINVAL);
        CHECK(mremap(to, MIB, MIB, MREMAP_DONTUNMAP, NULL) == MAP_FAILED && errno == EINVAL);
        CHECK(munmap(at, MIB) == 0 && munmap(to, MIB) == 0 && munmap(place, MIB) == 0);
    }
}

static size_t counted(unsigned char *from, size_t bytes) {
    unsigned char vector[256]; size_t count = 0; CHECK(bytes <= MIB && mincore(from, bytes, vector) == 0);
    for (size_t i = 0; i < bytes / 4096; i++) count += vector[i] & 1;
    return count;
}
static void present(void) {
    at = map(2 * MIB); CHECK(counted(at, MIB) == 0); memset(at, 7, 65536); CHECK(counted(at, MIB) >= 16); CHECK(counted(at + MIB, MIB) == 0 || pressure == 0);
    push_out(); size_t there = counted(at, 65536); CHECK(pressure == 0 || there < 16);
    for (size_t i = 0; i < 65536; i++) CHECK(at[i] == 7);
    CHECK(mlock(at, 65536) == 0); push_out(); CHECK(counted(at, 65536) == 16);
}

static void codes(void) {
    for (int round = 0; round < 2; round++) {
        at = map(MIB); fill(at, MIB, 1); CHECK(mprotect(at, 65536, PROT_READ) == 0 && mprotect(at + 65536, 65536, PROT_NONE) == 0);
        CHECK(munmap(at + MIB / 2, 65536) == 0);
        if (round) push_out();
        CHECK(touched(at, 0) == 0); CHECK(touched(at + 4, 1) == SIGSEGV && code == SEGV_ACCERR && where == at + 4);
        CHECK(touched(at + 65536 + 8, 0) == SIGSEGV && code == SEGV_ACCERR && where == at + 65536 + 8);
        CHECK(touched(at + MIB / 2 + 12, 0) == SIGSEGV && code == SEGV_MAPERR && where == at + MIB / 2 + 12);
        CHECK(touched(at + MIB / 2 + 12, 1) == SIGSEGV && code == SEGV_MAPERR); CHECK(touched(at + MIB - 4096, 1) == 0);
        CHECK(touched(NULL, 0) == SIGSEGV && code == SEGV_MAPERR);
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 2); pressure = atoi(argv[1]) * MIB;
    static const struct { const char *name; void (*run)(void); } parts[] = {
        {"dump", dump}, {"wipe", wipe}, {"absent", absent}, {"move", move}, {"present", present}, {"codes", codes} };
    for (int i = 2; i < argc; i++) {
        int known = 0;
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) if (!strcmp(argv[i], parts[p].name)) { parts[p].run(); known = 1; }
        CHECK(known);
    }
    puts("right");
    return 0;
}
