// SPDX-License-Identifier: Apache-2.0 OR MIT
// A small HTTP/1.1 client that keeps one server busy and checks the shape of every answer.
//
// Flow     load sweep BYTES ─▶ writes through that much memory until it is ended: a neighbour
//          load PORT CONNECTIONS SECONDS FILES PID [gzip] [tls1.2|tls1.3] ─▶ connect all ─▶ warm up ─▶ window ─▶ one
//          JSON line: requests, wrong answers, body bytes, seconds, CPU-seconds of PID inside the window, cipher
// Layout   FILES: one line per file, `PATH BYTES`; BYTES is what its body must measure on the wire, chunk headers not
//          counted. Each connection walks the files in order from a start of its own, one request outstanding
// Rule     an answer is right when its status is 200, its body has exactly BYTES bytes, and it is gzip if and only if
//          that was asked for; the contents are compared by whoever wrote FILES, before
// TLS      libssl.so.3 by dlopen, no headers needed; the certificate is not verified: it was made for this run
// Not here threads: one core drives one server

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 1024
#define WARM_UP_S 0.05
#define HEAD_BYTES_MAX 4096

struct file {
    char *request;
    size_t request_bytes;
    uint64_t body_bytes;
};

enum where { HEAD, BODY, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER };

struct connection {
    int fd;
    void *ssl;
    size_t file;
    enum where where;
    char head[HEAD_BYTES_MAX];
    size_t head_bytes;
    uint64_t left;       // of the body or of the chunk
    uint64_t body_bytes; // seen so far
    int right;           // status and encoding
};

static struct {
    void *(*client_method)(void);
    void *(*ctx_new)(const void *);
    long (*ctx_ctrl)(void *, int, long, void *);
    void *(*new)(void *);
    int (*set_fd)(void *, int);
    int (*connect)(void *);
    int (*read)(void *, void *, int);
    int (*write)(void *, const void *, int);
    int (*get_error)(const void *, int);
    const void *(*get_current_cipher)(const void *);
    const char *(*cipher_name)(const void *);
} tls;

static char buffer[1 << 18];
static struct file *files;
static size_t file_count;
static uint64_t requests, wrong, bytes;
static int wants_gzip;

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) != 0) fail("clock_gettime");
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void read_files(const char *path) {
    FILE *list = fopen(path, "r");
    if (list == NULL) fail(path);
    char name[1024];
    unsigned long long size;
    while (fscanf(list, "%1023s %llu", name, &size) == 2) {
        files = realloc(files, (file_count + 1) * sizeof *files);
        if (files == NULL) fail("memory");
        struct file *file = &files[file_count++];
        int length = asprintf(&file->request, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", name,
                              wants_gzip ? "Accept-Encoding: gzip\r\n" : "");
        if (length < 0) fail("memory");
        file->request_bytes = (size_t)length;
        file->body_bytes = size;
    }
    fclose(list);
    if (file_count == 0) fail("no files");
}

static void *load_tls(const char *version) {
    void *library = dlopen("libssl.so.3", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "load: %s (apt install libssl3)\n", dlerror());
        exit(3);
    }
    *(void **)&tls.client_method = dlsym(library, "TLS_client_method");
    *(void **)&tls.ctx_new = dlsym(library, "SSL_CTX_new");
    *(void **)&tls.ctx_ctrl = dlsym(library, "SSL_CTX_ctrl");
    *(void **)&tls.new = dlsym(library, "SSL_new");
    *(void **)&tls.set_fd = dlsym(library, "SSL_set_fd");
    *(void **)&tls.connect = dlsym(library, "SSL_connect");
    *(void **)&tls.read = dlsym(library, "SSL_read");
    *(void **)&tls.write = dlsym(library, "SSL_write");
    *(void **)&tls.get_error = dlsym(library, "SSL_get_error");
    *(void **)&tls.get_current_cipher = dlsym(library, "SSL_get_current_cipher");
    *(void **)&tls.cipher_name = dlsym(library, "SSL_CIPHER_get_name");
    void *context = tls.ctx_new(tls.client_method());
    if (context == NULL) fail("SSL_CTX_new");
    long protocol = strcmp(version, "tls1.2") == 0 ? 0x0303 : 0x0304;
    // 123 and 124: SSL_CTRL_SET_MIN_PROTO_VERSION and SSL_CTRL_SET_MAX_PROTO_VERSION of openssl/ssl.h.
    tls.ctx_ctrl(context, 123, protocol, NULL);
    tls.ctx_ctrl(context, 124, protocol, NULL);
    return context;
}

static void ask(struct connection *connection) {
    struct file *file = &files[connection->file];
    connection->where = HEAD;
    connection->head_bytes = 0;
    connection->body_bytes = 0;
    ssize_t sent = connection->ssl ? tls.write(connection->ssl, file->request, (int)file->request_bytes)
                                   : send(connection->fd, file->request, file->request_bytes, MSG_NOSIGNAL);
    // A request is some hundred bytes into an empty socket buffer: it goes at once or not at all.
    if (sent != (ssize_t)file->request_bytes) fail("sending a request");
}

static void answered(struct connection *connection) {
    requests++;
    bytes += connection->body_bytes;
    if (!connection->right || connection->body_bytes != files[connection->file].body_bytes) wrong++;
    connection->file = (connection->file + 1) % file_count;
    ask(connection);
}

/// What the head says: status, encoding, how the body is framed.
static void read_head(struct connection *connection) {
    connection->head[connection->head_bytes] = 0;
    connection->right = strncmp(connection->head, "HTTP/1.1 200 ", 13) == 0;
    int gzip = 0, chunked = 0;
    uint64_t length = 0;
    for (char *line = connection->head; line != NULL; line = strstr(line, "\r\n")) {
        if (*line == '\r') line += 2;
        if (strncasecmp(line, "content-length:", 15) == 0) length = strtoull(line + 15, NULL, 10);
        if (strncasecmp(line, "transfer-encoding: chunked", 26) == 0) chunked = 1;
        if (strncasecmp(line, "content-encoding: gzip", 22) == 0) gzip = 1;
    }
    connection->right &= gzip == wants_gzip;
    connection->where = chunked ? CHUNK_SIZE : BODY;
    connection->left = chunked ? 0 : length;
}

static void take(struct connection *connection, const char *at, size_t count) {
    const char *end = at + count;
    while (at < end) {
        size_t there = (size_t)(end - at);
        switch (connection->where) {
        case HEAD:
            if (connection->head_bytes + 1 >= HEAD_BYTES_MAX) fail("an answer's head is too long");
            connection->head[connection->head_bytes++] = *at++;
            if (connection->head_bytes >= 4 &&
                memcmp(connection->head + connection->head_bytes - 4, "\r\n\r\n", 4) == 0) {
                read_head(connection);
                if (connection->where == BODY && connection->left == 0) answered(connection);
            }
            break;
        case BODY:
        case CHUNK: {
            size_t part = there < connection->left ? there : (size_t)connection->left;
            at += part;
            connection->left -= part;
            connection->body_bytes += part;
            if (connection->left == 0) {
                if (connection->where == BODY) answered(connection);
                else connection->where = CHUNK_END;
            }
            break;
        }
        case CHUNK_SIZE:
            if (*at == '\n') connection->where = connection->left == 0 ? TRAILER : CHUNK;
            else if (*at >= '0' && *at <= '9') connection->left = connection->left * 16 + (uint64_t)(*at - '0');
            else if ((*at | 32) >= 'a' && (*at | 32) <= 'f')
                connection->left = connection->left * 16 + (uint64_t)((*at | 32) - 'a' + 10);
            at++;
            break;
        case CHUNK_END:
        case TRAILER:
            if (*at++ == '\n') {
                if (connection->where == TRAILER) answered(connection);
                else connection->where = CHUNK_SIZE;
            }
            break;
        }
    }
}

/// Reads what there is. The kernel's buffer is asked again only when this one was filled.
static void readable(struct connection *connection) {
    for (;;) {
        ssize_t count;
        if (connection->ssl) {
            count = tls.read(connection->ssl, buffer, sizeof buffer);
            // 2: SSL_ERROR_WANT_READ
            if (count <= 0 && tls.get_error(connection->ssl, (int)count) == 2) return;
        } else {
            count = recv(connection->fd, buffer, sizeof buffer, 0);
            if (count < 0 && errno == EAGAIN) return;
        }
        if (count <= 0) fail("the server closed a connection");
        take(connection, buffer, (size_t)count);
        if (!connection->ssl && (size_t)count < sizeof buffer) return;
    }
}

/// Writes one word of every cache line, again and again; says once that all of it is there.
static void sweep(size_t size) {
    volatile uint64_t *words = malloc(size);
    if (words == NULL) fail("memory");
    for (uint64_t round = 0;; round++) {
        for (size_t at = 0; at < size / 8; at += 8) words[at] += round;
        if (round == 0) {
            puts("ready");
            fflush(stdout);
        }
    }
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "sweep") == 0) sweep(strtoull(arguments[2], NULL, 10));
    if (count < 6) {
        fprintf(stderr, "usage: load PORT CONNECTIONS SECONDS FILES PID [gzip] [tls1.2|tls1.3]\n");
        return 2;
    }
    int port = atoi(arguments[1]), wanted = atoi(arguments[2]);
    double seconds = atof(arguments[3]);
    // The CPU clock of another process, as clock_getcpuclockid(3) makes it.
    clockid_t worker = (clockid_t)((~(unsigned)atoi(arguments[5]) << 3) | 2);
    void *context = NULL;
    for (int index = 6; index < count; index++) {
        if (strcmp(arguments[index], "gzip") == 0) wants_gzip = 1;
        else context = load_tls(arguments[index]);
    }
    if (wanted < 1 || wanted > CONNECTIONS_MAX) {
        fprintf(stderr, "load: 1 to %d connections\n", CONNECTIONS_MAX);
        return 2;
    }
    read_files(arguments[4]);
    struct connection *connections = calloc((size_t)wanted, sizeof *connections);
    int poll = epoll_create1(0);
    if (connections == NULL || poll < 0) fail("starting");
    const char *cipher = "";
    for (int index = 0; index < wanted; index++) {
        struct connection *connection = &connections[index];
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int one = 1;
        if (connection->fd < 0 || connect(connection->fd, (struct sockaddr *)&address, sizeof address) != 0 ||
            setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
            fail("connecting");
        if (context != NULL) {
            connection->ssl = tls.new(context);
            if (connection->ssl == NULL || tls.set_fd(connection->ssl, connection->fd) != 1 ||
                tls.connect(connection->ssl) != 1)
                fail("the TLS handshake");
            cipher = tls.cipher_name(tls.get_current_cipher(connection->ssl));
        }
        if (fcntl(connection->fd, F_SETFL, O_NONBLOCK) != 0) fail("fcntl");
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, connection->fd, &event) != 0) fail("epoll_ctl");
        connection->file = (size_t)index * file_count / (size_t)wanted;
    }
    for (int index = 0; index < wanted; index++) ask(&connections[index]);
    double begin = now(CLOCK_MONOTONIC) + WARM_UP_S, at, cpu = 0;
    int measuring = 0;
    for (;;) {
        struct epoll_event events[64];
        int ready = epoll_wait(poll, events, 64, 5000);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) fail("the server answers nothing for five seconds");
        for (int index = 0; index < ready; index++) readable(events[index].data.ptr);
        at = now(CLOCK_MONOTONIC);
        if (!measuring && at >= begin) {
            measuring = 1;
            requests = wrong = bytes = 0;
            cpu = now(worker);
            begin = at;
        } else if (measuring && at - begin >= seconds) {
            break;
        }
    }
    cpu = now(worker) - cpu;
    printf("{\"requests\": %llu, \"wrong\": %llu, \"bytes\": %llu, \"seconds\": %.9f, \"cpu_s\": %.9f, \"cipher\": \"%s\"}\n",
           (unsigned long long)requests, (unsigned long long)wrong, (unsigned long long)bytes, at - begin, cpu, cipher);
    return 0;
}
