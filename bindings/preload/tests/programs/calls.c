// SPDX-License-Identifier: Apache-2.0 OR MIT
// System calls with buffers that are away: by libc's functions, by libc's inside, by syscall(), by the instruction.
#include "check.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <dirent.h>
#include <linux/futex.h>
#include <sys/resource.h>
#include <time.h>

static size_t pressure;
static long raw(long n, long a, long b, long c, long d, long e, long f) {
    long result; register long r10 asm("r10") = d; register long r8 asm("r8") = e; register long r9 asm("r9") = f;
    asm volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
static unsigned char *away(size_t bytes, uint64_t seed) { unsigned char *p = malloc(bytes); fill(p, bytes, seed); return p; }

static void *writer(void *at) { int fd = *(int *)at; unsigned char *p = away(9 * MIB, 77); size_t done = 0; while (done < 9 * MIB) { ssize_t n = write(fd, p + done, 9 * MIB - done); CHECK(n > 0); done += n; } free(p); return NULL; }
static volatile sig_atomic_t alarms;
static void on_alarm(int s) { (void)s; alarms++; }

int main(int argc, char **argv) {
    pressure = (argc > 1 ? atoi(argv[1]) : 64) * MIB;
    char *path = malloc(4096); snprintf(path, 4096, "/tmp/memlift-calls-%d", getpid());
    size_t bytes = 12 * MIB + 123;
    for (int way = 0; way < 4; way++) {
        unsigned char *out = away(bytes, 1 + way), *in = malloc(bytes); memset(in, 1, bytes);
        press(pressure);
        int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600); CHECK(fd >= 0);
        // Written whole, in one call.
        ssize_t n = way == 0 ? write(fd, out, bytes) : way == 1 ? syscall(SYS_write, fd, out, bytes) : way == 2 ? raw(SYS_pwrite64, fd, (long)out, bytes, 0, 0, 0) : -1;
        if (way == 3) { FILE *f = fdopen(dup(fd), "w"); n = fwrite(out, 1, bytes, f); CHECK(fclose(f) == 0); }
        CHECK(n == (ssize_t)bytes);
        press(pressure);
        CHECK(lseek(fd, 0, SEEK_SET) == 0);
        n = way == 0 ? read(fd, in, bytes) : way == 1 ? syscall(SYS_pread64, fd, in, bytes, 0) : way == 2 ? raw(SYS_read, fd, (long)in, bytes, 0, 0, 0) : -1;
        if (way == 3) { FILE *f = fdopen(dup(fd), "r"); n = fread(in, 1, bytes, f); fclose(f); }
        CHECK(n == (ssize_t)bytes);
        CHECK(same(in, bytes, 1 + way)); CHECK(same(out, bytes, 1 + way));
        // Vectors, the vector itself in memory that goes away.
        struct iovec *vector = malloc(300 * sizeof *vector);
        for (int i = 0; i < 300; i++) { vector[i].iov_base = out + (size_t)i * 40000; vector[i].iov_len = 30001; }
        press(pressure);
        CHECK(lseek(fd, 0, SEEK_SET) == 0);
        n = way == 0 ? writev(fd, vector, 300) : way == 1 ? syscall(SYS_writev, fd, vector, 300) : way == 2 ? raw(SYS_pwritev, fd, (long)vector, 300, 0, 0, 0) : pwritev(fd, vector, 300, 0);
        CHECK(n == 300 * 30001);
        memset(in, 2, bytes);
        for (int i = 0; i < 300; i++) vector[i].iov_base = in + (size_t)i * 40000;
        press(pressure);
        n = way == 0 ? preadv(fd, vector, 300, 0) : way == 1 ? syscall(SYS_preadv, fd, vector, 300, 0, 0) : way == 2 ? raw(SYS_preadv, fd, (long)vector, 300, 0, 0, 0) : preadv(fd, vector, 300, 0);
        CHECK(n == 300 * 30001);
        for (int i = 0; i < 300; i++) CHECK(memcmp(in + (size_t)i * 40000, out + (size_t)i * 40000, 30001) == 0);
        // Where nothing is, it is said, and short counts are right.
        CHECK(pread(fd, (void *)8, 10, 0) == -1 && errno == EFAULT);
        unsigned char *edge = mmap(NULL, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(munmap(edge + (128 << 10), 128 << 10) == 0);
        CHECK(pread(fd, edge + (120 << 10), 64 << 10, 0) == 8 << 10);
        CHECK(memcmp(edge + (120 << 10), in, 8 << 10) == 0);
        CHECK(munmap(edge, 128 << 10) == 0);
        close(fd); free(out); free(in); free(vector);
    }
    // O_DIRECT.
    int direct = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (direct >= 0) {
        unsigned char *p; CHECK(posix_memalign((void **)&p, 4096, 8 * MIB) == 0); fill(p, 8 * MIB, 9);
        press(pressure); CHECK(pwrite(direct, p, 8 * MIB, 0) == 8 * MIB);
        memset(p, 0, 8 * MIB); press(pressure);
        CHECK(pread(direct, p, 8 * MIB, 0) == 8 * MIB); CHECK(same(p, 8 * MIB, 9)); free(p); close(direct);
    }
    // Structures, texts, lists.
    struct stat *status = malloc(sizeof *status); memset(status, 0, sizeof *status); press(pressure);
    CHECK(stat(path, status) == 0 && status->st_size > 0);
    press(pressure); CHECK(raw(SYS_stat, (long)path, (long)status, 0, 0, 0, 0) == 0);
    DIR *dir = opendir("/usr/bin"); CHECK(dir); int entries = 0; while (readdir(dir)) if (entries++ == 3) press(pressure); CHECK(entries > 100); closedir(dir);
    char *where = malloc(8192); press(pressure); CHECK(getcwd(where, 8192) == where);
    unsigned char *random = malloc(1 << 20); press(pressure); CHECK(getrandom(random, 1 << 20, 0) == 1 << 20);
    struct timespec *pause = malloc(sizeof *pause); pause->tv_sec = 0; pause->tv_nsec = 1000; press(pressure); CHECK(nanosleep(pause, pause) == 0);
    struct rusage *usage = malloc(sizeof *usage); press(pressure); CHECK(getrusage(RUSAGE_SELF, usage) == 0);
    // Sockets: streams, messages, descriptors; poll, select, epoll.
    int *pair = malloc(2 * sizeof *pair); press(pressure); CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pthread_t thread; pthread_create(&thread, NULL, writer, &pair[1]);
    unsigned char *received = malloc(9 * MIB); memset(received, 0, 9 * MIB); press(pressure);
    size_t done = 0; int turn = 0;
    while (done < 9 * MIB) {
        ssize_t n; size_t left = 9 * MIB - done;
        if (turn % 3 == 0) n = recv(pair[0], received + done, left, 0);
        else if (turn % 3 == 1) { struct iovec v = { received + done, left }; struct msghdr *m = calloc(1, sizeof *m); m->msg_iov = &v; m->msg_iovlen = 1; n = recvmsg(pair[0], m, 0); free(m); }
        else n = readv(pair[0], &(struct iovec){ received + done, left }, 1);
        CHECK(n > 0); done += n; turn++;
    }
    pthread_join(thread, NULL); CHECK(same(received, 9 * MIB, 77));
    int datagram[2]; CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram) == 0);
    unsigned char *packet = away(60000, 5); press(pressure);
    CHECK(send(datagram[1], packet, 60000, 0) == 60000); memset(packet, 0, 60000); press(pressure);
    CHECK(recvfrom(datagram[0], packet, 60000, 0, NULL, NULL) == 60000 && same(packet, 60000, 5));
    struct mmsghdr *many = calloc(8, sizeof *many); struct iovec *parts = calloc(8, sizeof *parts);
    for (int i = 0; i < 8; i++) { parts[i].iov_base = packet + i * 4000; parts[i].iov_len = 4000; many[i].msg_hdr.msg_iov = &parts[i]; many[i].msg_hdr.msg_iovlen = 1; }
    press(pressure); CHECK(sendmmsg(datagram[1], many, 8, 0) == 8);
    for (int i = 0; i < 8; i++) parts[i].iov_base = received + i * 4096;
    press(pressure); CHECK(recvmmsg(datagram[0], many, 8, 0, NULL) == 8);
    for (int i = 0; i < 8; i++) CHECK(many[i].msg_len == 4000 && memcmp(received + i * 4096, packet + i * 4000, 4000) == 0);
    struct pollfd *polled = malloc(sizeof *polled); *polled = (struct pollfd){ pair[1], POLLOUT, 0 }; press(pressure); CHECK(poll(polled, 1, 1000) == 1 && polled->revents & POLLOUT);
    fd_set *set = malloc(sizeof *set); FD_ZERO(set); FD_SET(pair[1], set); press(pressure); CHECK(select(pair[1] + 1, NULL, set, NULL, NULL) == 1);
    int epoll = epoll_create1(0); struct epoll_event *event = malloc(64 * sizeof *event); event->events = EPOLLOUT; event->data.u64 = 42; press(pressure);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], event) == 0); press(pressure); CHECK(epoll_wait(epoll, event, 64, 1000) == 1 && event->data.u64 == 42);
    int *readable = malloc(4); press(pressure); CHECK(ioctl(datagram[0], FIONREAD, readable) == 0 && *readable == 0);
    // A call that waits is interrupted, or goes on, as the program asked.
    unsigned char *waiting = malloc(1 << 16); press(pressure);
    struct sigaction action = { .sa_handler = on_alarm }; sigaction(SIGALRM, &action, NULL);
    struct itimerval soon = { .it_value = { 0, 30000 } }; setitimer(ITIMER_REAL, &soon, NULL);
    CHECK(read(pair[0], waiting, 1 << 16) == -1 && errno == EINTR && alarms == 1);
    setitimer(ITIMER_REAL, &soon, NULL); press(pressure / 4);
    if (alarms == 1) CHECK(raw(SYS_read, pair[0], (long)waiting, 1 << 16, 0, 0, 0) == -EINTR && alarms == 2);
    // futex.
    unsigned *word = malloc(1 << 16); *word = 7; press(pressure);
    struct timespec limit = { 0, 2000000 };
    CHECK(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 7, &limit) == -1 && errno == ETIMEDOUT);
    press(pressure); CHECK(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 8, NULL) == -1 && errno == EAGAIN);
    press(pressure); CHECK(raw(SYS_futex, (long)word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0) == 0);
    // exec from memory that is away.
    char **arguments = malloc(4 * sizeof *arguments); arguments[0] = strdup("sh"); arguments[1] = strdup("-c"); arguments[2] = strdup("test \"$WORD\" = here"); arguments[3] = NULL;
    char **variables = malloc(2 * sizeof *variables); variables[0] = strdup("WORD=here"); variables[1] = NULL; press(pressure);
    pid_t child = vfork(); if (child == 0) { execve("/bin/sh", arguments, variables); _exit(9); }
    int *ended = malloc(sizeof *ended); press(pressure); CHECK(waitpid(child, ended, 0) == child && *ended == 0);
    setenv("WORD", "there", 1); press(pressure); CHECK(system("test \"$WORD\" = there") == 0);
    FILE *pipe = popen("echo from a pipe", "r"); press(pressure); CHECK(fgets(where, 100, pipe) && strcmp(where, "from a pipe\n") == 0); CHECK(pclose(pipe) == 0);
    unlink(path);
    puts("right");
    return 0;
}
