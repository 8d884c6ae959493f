// SPDX-License-Identifier: Apache-2.0 OR MIT
// Calls whose memory a structure names, and the program's own memory as a file: `interfaces`, `filter`, `trap`, `pipe`, `file`,
// `wrong`, `faults`, each in the second argument.
#include "check.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <net/if.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>

static size_t pressure;
static void away(void) { press(pressure); press(pressure); }
static void *area(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(at != MAP_FAILED); return at;
}
static void on_call(int signal, siginfo_t *info, void *context) { (void)signal; (void)info; ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242; }
static void read_all(int from, unsigned char *to, size_t bytes) {
    for (size_t done = 0; done < bytes;) { ssize_t got = read(from, to + done, bytes - done); CHECK(got > 0); done += got; }
}
int main(int argc, char **argv) {
    CHECK(argc > 2); pressure = atoi(argv[1]) * MIB; const char *part = argv[2]; static unsigned char bytes[256 << 10];
    if (!strcmp(part, "interfaces")) {
        int any = socket(AF_INET, SOCK_DGRAM, 0); CHECK(any >= 0); struct ifreq *list = area(65536);
        for (int round = 0; round < 2; round++) {
            struct ifconf here = {.ifc_len = 32768, .ifc_req = list}, *there = area(65536); *there = here; memset(list, 1, 65536); away();
            CHECK(ioctl(any, SIOCGIFCONF, round ? there : &here) == 0); CHECK(round ? there->ifc_len < 32768 : here.ifc_len < 32768);
        }
    } else if (!strcmp(part, "filter")) {
        int any = socket(AF_INET, SOCK_DGRAM, 0); CHECK(any >= 0); struct sock_filter *code = area(65536);
        for (int i = 0; i < 3000; i++) code[i] = (struct sock_filter){BPF_LD | BPF_IMM, 0, 0, i};
        code[3000] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, 0xffff}; struct sock_fprog whole = {3001, code}; away();
        CHECK(setsockopt(any, SOL_SOCKET, SO_ATTACH_FILTER, &whole, sizeof whole) == 0);
    } else if (!strcmp(part, "trap")) {
        struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO}; CHECK(sigaction(SIGSYS, &action, NULL) == 0);
        struct sock_filter code[] = {{0x20, 0, 0, 0}, {0x15, 0, 1, SYS_getppid}, {6, 0, 0, SECCOMP_RET_TRAP}, {6, 0, 0, SECCOMP_RET_ALLOW}}, *copy = area(65536);
        memcpy(copy, code, sizeof code); struct sock_fprog *whole = area(65536); *whole = (struct sock_fprog){4, copy}; unsigned char *kept = area(MIB); fill(kept, MIB, 1); away();
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, whole) == 0);
        away(); CHECK(same(kept, MIB, 1) && getppid() == 4242); away(); CHECK(same(kept, MIB, 1) && getppid() == 4242);
    } else if (!strcmp(part, "pipe")) {
        unsigned char *sent = area(MIB); fill(sent, MIB, 5); if (argc > 3) away();
        int first[2], second[2]; CHECK(pipe(first) == 0 && pipe(second) == 0 && fcntl(first[1], F_SETPIPE_SZ, MIB) > 0 && fcntl(second[1], F_SETPIPE_SZ, MIB) > 0);
        struct iovec all = {sent, sizeof bytes}; CHECK(vmsplice(first[1], &all, 1, 0) == sizeof bytes && tee(first[0], second[1], sizeof bytes, 0) == sizeof bytes);
        away(); read_all(first[0], bytes, sizeof bytes); CHECK(same(bytes, sizeof bytes, 5));
        // The second pipe has the program's own pages, so it has what was written since.
        memset(sent, 7, 4096); away(); read_all(second[0], bytes, sizeof bytes); CHECK(bytes[0] == 7 && same(bytes + 4096, sizeof bytes - 4096, 5 + 64));
        CHECK(munmap(sent, MIB) == 0); away();
    } else if (!strcmp(part, "file")) {
        unsigned char *own = area(4 * MIB); fill(own, 4 * MIB, 1); int file = open("/proc/self/mem", O_RDWR); CHECK(file >= 0);
        away(); CHECK(pread(file, bytes, 65536, (off_t)(uintptr_t)own) == 65536 && same(bytes, 65536, 1));
        away(); CHECK(pwrite(file, "hello", 5, (off_t)(uintptr_t)own + MIB) == 5); away(); CHECK(!memcmp(own + MIB, "hello", 5) && own[MIB + 5] == byte_of(1, MIB + 5));
        away(); CHECK(lseek(file, (off_t)(uintptr_t)own + 2 * MIB, SEEK_SET) > 0); CHECK(read(file, bytes, 100) == 100 && same(bytes, 100, 1 + 2 * MIB / 64));
        away(); CHECK(lseek(file, 0, SEEK_CUR) == (off_t)(uintptr_t)own + 2 * MIB + 100); CHECK(write(file, "there", 5) == 5); CHECK(!memcmp(own + 2 * MIB + 100, "there", 5));
    } else if (!strcmp(part, "wrong")) {
        unsigned char *own = area(MIB), *closed = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); for (int round = 0; round < 2; round++) {
            CHECK(mincore(own, 4096, (void *)8) == -1 && errno == EFAULT); CHECK(mincore(own, MIB, closed) == -1 && errno == EFAULT);
            CHECK(mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1) == MAP_FAILED && errno == EINVAL);
            CHECK(ioctl(0, SIOCGIFCONF, (void *)8) == -1); CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 8) == -1 && errno == EFAULT); away();
        }
    } else if (!strcmp(part, "faults")) {
        unsigned char *own = area(MIB); if (argc > 3) away();
        int faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK); if (faults < 0) { puts("skipped: no userfaultfd"); return 0; }
        struct uffdio_api api = {.api = UFFD_API}; CHECK(ioctl(faults, UFFDIO_API, &api) == 0);
        struct uffdio_register watched = {.range = {(uintptr_t)own, MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING}; CHECK(ioctl(faults, UFFDIO_REGISTER, &watched) == 0); away();
    } else return 9;
    puts("right");
    return 0;
}
