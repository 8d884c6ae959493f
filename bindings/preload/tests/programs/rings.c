// SPDX-License-Identifier: Apache-2.0 OR MIT
// What the kernel was given before memory was short: rings of io_uring and asynchronous I/O, by bare instructions.
#include "check.h"
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { BUFFERS = 16, BYTES = 256 << 10 };
static long call(long number, long a, long b, long c, long d, long e, long f) {
    long result; register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
static struct io_uring_params params; static int ring; static unsigned flags_of_enter; static char *shared; static struct io_uring_sqe *entries; static struct io_uring_cqe *done;
static unsigned *at(unsigned offset) { return (unsigned *)(shared + offset); }
static int setup(unsigned flags) {
    memset(&params, 0, sizeof params); params.flags = flags; params.sq_thread_idle = 50;
    ring = (int)call(SYS_io_uring_setup, 32, (long)&params, 0, 0, 0, 0);
    if (ring < 0) { printf("skipped: io_uring_setup says %d\n", -ring); return 0; }
    size_t bytes = params.cq_off.cqes + params.cq_entries * sizeof *done, all = params.sq_off.array + params.sq_entries * 4;
    shared = mmap(NULL, bytes > all ? bytes : all, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING); CHECK(shared != MAP_FAILED);
    entries = mmap(NULL, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES); CHECK(entries != MAP_FAILED);
    done = (struct io_uring_cqe *)(shared + params.cq_off.cqes);
    return 1;
}
// One request: the place of its entry is its own reversed, so that the array of places counts.
static void submit(unsigned code, int fd, void *address, unsigned length, unsigned long offset, int index) {
    unsigned tail = *at(params.sq_off.tail), mask = *at(params.sq_off.ring_mask), place = mask - (tail & mask);
    struct io_uring_sqe *entry = &entries[place]; memset(entry, 0, sizeof *entry);
    entry->opcode = (unsigned char)code; entry->fd = fd; entry->addr = (unsigned long)address; entry->len = length; entry->off = offset; entry->buf_index = (unsigned short)index; entry->user_data = 7;
    at(params.sq_off.array)[tail & mask] = place; __atomic_store_n(at(params.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    CHECK(call(SYS_io_uring_enter, ring, 1, 0, flags_of_enter, 0, 0) == 1);
}
static int answer(void) {
    while (__atomic_load_n(at(params.cq_off.tail), __ATOMIC_ACQUIRE) == *at(params.cq_off.head))
        call(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS | flags_of_enter, 0, 0);
    unsigned head = *at(params.cq_off.head); int result = done[head & *at(params.cq_off.ring_mask)].res;
    __atomic_store_n(at(params.cq_off.head), head + 1, __ATOMIC_RELEASE); return result;
}
// Numbers of files and tags of buffers, which the structures of a registration name; then, with buffers, what the file has.
static void register_named(struct iovec *parts, int file, size_t pressure, int empty_first) {
    unsigned long *tags = calloc(4096, sizeof *tags); int *files = calloc(4096, sizeof *files);
    struct io_uring_rsrc_register *all = calloc(1, 1 << 16); struct io_uring_rsrc_update2 *some = calloc(1, 1 << 16);
    for (int i = 0; i < 300; i++) files[i] = file;
    *all = (struct io_uring_rsrc_register){ .nr = 300, .data = (unsigned long)files, .tags = (unsigned long)tags };
    press(pressure); CHECK(call(SYS_io_uring_register, ring, IORING_REGISTER_FILES2, (long)all, sizeof *all, 0, 0) == 0);
    *some = (struct io_uring_rsrc_update2){ .offset = 3, .nr = 200, .data = (unsigned long)files, .tags = (unsigned long)tags };
    press(pressure); CHECK(call(SYS_io_uring_register, ring, IORING_REGISTER_FILES_UPDATE2, (long)some, sizeof *some, 0, 0) == 200);
    *all = (struct io_uring_rsrc_register){ .nr = BUFFERS, .data = (unsigned long)parts, .tags = (unsigned long)tags };
    if (empty_first) *all = (struct io_uring_rsrc_register){ .nr = BUFFERS, .flags = IORING_RSRC_REGISTER_SPARSE };
    press(pressure); CHECK(call(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS2, (long)all, sizeof *all, 0, 0) == 0);
    if (!empty_first) return;
    *some = (struct io_uring_rsrc_update2){ .nr = BUFFERS, .data = (unsigned long)parts, .tags = (unsigned long)tags };
    press(pressure); CHECK(call(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS_UPDATE, (long)some, sizeof *some, 0, 0) == BUFFERS);
}
int main(int argc, char **argv) {
    CHECK(argc > 2); const char *mode = argv[1]; size_t pressure = atoi(argv[2]) * MIB;
    int is_aio = !strcmp(mode, "aio"), registered = !strcmp(mode, "registered") || !strcmp(mode, "late") || !strncmp(mode, "named", 5), vectors = !strcmp(mode, "vectors");
    unsigned char *buffers[BUFFERS]; struct iovec *parts = calloc(BUFFERS, sizeof *parts); unsigned char *text = malloc(BYTES);
    char name[] = "/var/tmp/memlift-rings-XXXXXX"; int file = mkstemp(name); CHECK(file >= 0); unlink(name);
    for (int i = 0; i < BUFFERS; i++) {
        buffers[i] = malloc(BYTES); fill(buffers[i], BYTES, 900 + i); parts[i] = (struct iovec){ buffers[i], BYTES };
        fill(text, BYTES, i); CHECK(pwrite(file, text, BYTES, (long)i * BYTES) == BYTES);
    }
    aio_context_t context = 0; int pipe_ends[2]; CHECK(pipe(pipe_ends) == 0);
    if (is_aio) { if (call(SYS_io_setup, 32, (long)&context, 0, 0, 0, 0)) { puts("skipped: no asynchronous I/O"); return 0; } }
    else if (!setup(!strcmp(mode, "polled") ? IORING_SETUP_SQPOLL : 0)) return 0;
    if (!strcmp(mode, "registered")) CHECK(call(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, (long)parts, BUFFERS, 0, 0) == 0);
    if (!strcmp(mode, "provided")) { submit(IORING_OP_PROVIDE_BUFFERS, 4, buffers[0], 4096, 0, 3); CHECK(answer() >= 0); }
    if (!strcmp(mode, "waiting")) submit(IORING_OP_READ, pipe_ends[0], buffers[5], 5000, 0, 0);
    if (!strcmp(mode, "given")) {
        struct io_uring_buf_reg given = { .ring_addr = (unsigned long)aligned_alloc(4096, 4096), .ring_entries = 16, .bgid = 5 };
        if (call(SYS_io_uring_register, ring, IORING_REGISTER_PBUF_RING, (long)&given, 1, 0, 0)) { puts("skipped: no rings of buffers"); return 0; }
    }
    if (!strcmp(mode, "hidden")) {
        struct io_uring_rsrc_update number = { .offset = -1u, .data = (unsigned long)ring };
        if (call(SYS_io_uring_register, ring, IORING_REGISTER_RING_FDS, (long)&number, 1, 0, 0) != 1) { puts("skipped: no numbers of rings"); return 0; }
        CHECK(close(ring) == 0); ring = (int)number.offset; flags_of_enter = IORING_ENTER_REGISTERED_RING; submit(IORING_OP_READ, pipe_ends[0], buffers[5], 5000, 0, 0);
    }
    for (int round = 0; round < 2; round++) press(pressure);
    if (!strncmp(mode, "named", 5)) register_named(parts, file, pressure, !strcmp(mode, "named_later"));
    if (!strcmp(mode, "late")) CHECK(call(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, (long)parts, BUFFERS, 0, 0) == 0);
    if (!strcmp(mode, "waiting")) {
        unsigned char *sent = malloc(5000); fill(sent, 5000, 77); CHECK(write(pipe_ends[1], sent, 5000) == 5000);
        int got = answer(); if (got != 5000) fprintf(stderr, "the request that waited says %d\n", got); CHECK(got == 5000 && same(buffers[5], 5000, 77));
        for (size_t i = 5056; i < BYTES; i++) CHECK(buffers[5][i] == byte_of(905, i));
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BUFFERS; i++) {
            if (is_aio) {
                struct iocb *block = calloc(1, sizeof *block), **list = malloc(sizeof *list); list[0] = block; struct io_event *event = calloc(1, sizeof *event);
                block->aio_lio_opcode = IOCB_CMD_PREAD; block->aio_fildes = (unsigned)file; block->aio_buf = (unsigned long)buffers[i]; block->aio_nbytes = BYTES; block->aio_offset = (long)i * BYTES;
                press(pressure / 8); CHECK(call(SYS_io_submit, (long)context, 1, (long)list, 0, 0, 0) == 1); CHECK(call(SYS_io_getevents, (long)context, 1, 1, (long)event, 0, 0) == 1);
                if (event->res != BYTES) fprintf(stderr, "asynchronous read says %lld\n", (long long)event->res);
                CHECK(event->res == BYTES); free(block); free(list); free(event);
            } else submit(vectors ? IORING_OP_READV : registered ? IORING_OP_READ_FIXED : IORING_OP_READ, file, vectors ? (void *)&parts[i] : buffers[i], vectors ? 1 : BYTES, (unsigned long)i * BYTES, i);
        }
        press(pressure);
        for (int i = 0; i < BUFFERS && !is_aio; i++) { int got = answer(); if (got != BYTES) fprintf(stderr, "request %d says %d\n", i, got); CHECK(got == BYTES); }
        for (int i = 0; i < BUFFERS; i++) { CHECK(same(buffers[i], BYTES, i)); fill(buffers[i], BYTES, 900 + i); }
        press(pressure);
    }
    puts("right");
    return 0;
}
