// SPDX-License-Identifier: Apache-2.0 OR MIT
// Calls that wait from before memory is short until after it is: what they are given arrives, also if the process is stopped meanwhile.
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { KINDS = 7, BYTES = 256 << 10 };
static int pairs[KINDS][2]; static volatile int spin = 1; static unsigned char *spun;
static void *wait_for_bytes(void *at) {
    size_t kind = (size_t)at; int fd = pairs[kind][1]; unsigned char *buffer = malloc(BYTES); fill(buffer, BYTES, 70 + kind); ssize_t got = 100;
    struct iovec *parts = malloc(2 * sizeof *parts); parts[0] = (struct iovec){ buffer, 60 }; parts[1] = (struct iovec){ buffer + 60, 1000 };
    switch (kind) {
    case 0: got = read(fd, buffer, BYTES); break;
    case 1: got = readv(fd, parts, 2); break;
    case 2: got = recv(fd, buffer, BYTES, 0); break;
    case 3: { struct msghdr *message = calloc(1, sizeof *message); message->msg_iov = parts; message->msg_iovlen = 2; got = recvmsg(fd, message, 0); break; }
    case 4: { struct pollfd *wanted = malloc(sizeof *wanted); *wanted = (struct pollfd){ fd, POLLIN, 0 }; CHECK(poll(wanted, 1, -1) == 1 && wanted->revents == POLLIN); got = read(fd, buffer, BYTES); break; }
    case 5: { int all = epoll_create1(0); struct epoll_event *events = calloc(300, sizeof *events); events->events = EPOLLIN; events->data.u64 = 99; CHECK(epoll_ctl(all, EPOLL_CTL_ADD, fd, events) == 0); memset(events, 0, 300 * sizeof *events); int ready; while ((ready = epoll_wait(all, events, 300, -1)) < 0) CHECK(errno == EINTR); CHECK(ready == 1 && events->data.u64 == 99); got = read(fd, buffer, BYTES); break; }
    case 6: { pid_t child = fork(); CHECK(child >= 0); if (child == 0) { char byte[100]; _exit(read(fd, byte, 100) == 100 ? 7 : 8); } int *status = malloc(BYTES); CHECK(waitpid(child, status, 0) == child && WIFEXITED(*status) && WEXITSTATUS(*status) == 7); fill(buffer, 100, kind); break; }
    }
    CHECK(got == 100 && same(buffer, 100, kind)); fill(buffer, 100, 70 + kind);
    for (size_t i = 100; i < BYTES; i++) CHECK(buffer[i] == byte_of(70 + kind, i));
    return buffer;
}
static void *run(void *at) { (void)at; unsigned long n = 0; while (spin) { n++; if (n % 1000000 == 0) CHECK(spun[n % BYTES] == byte_of(5, n % BYTES)); } return NULL; }
int main(int argc, char **argv) {
    size_t pressure = (argc > 1 ? atoi(argv[1]) : 24) * MIB; pthread_t threads[KINDS], runner;
    spun = malloc(BYTES); fill(spun, BYTES, 5); CHECK(pthread_create(&runner, NULL, run, NULL) == 0);
    for (size_t kind = 0; kind < KINDS; kind++) { CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[kind]) == 0); CHECK(pthread_create(&threads[kind], NULL, wait_for_bytes, (void *)kind) == 0); }
    usleep(100000); for (int round = 0; round < 3; round++) press(pressure);
    // The process is stopped and goes on, and with it the calls.
    pid_t parent = getpid(), child = fork(); CHECK(child >= 0);
    if (child == 0) { usleep(50000); kill(parent, SIGSTOP); usleep(200000); kill(parent, SIGCONT); _exit(0); }
    int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int round = 0; round < 3; round++) press(pressure);
    for (size_t kind = 0; kind < KINDS; kind++) { unsigned char *bytes = malloc(100); fill(bytes, 100, kind); CHECK(write(pairs[kind][0], bytes, 100) == 100); void *buffer; CHECK(pthread_join(threads[kind], &buffer) == 0 && buffer); press(pressure / 2); }
    spin = 0; pthread_join(runner, NULL); CHECK(same(spun, BYTES, 5));
    puts("right");
    return 0;
}
