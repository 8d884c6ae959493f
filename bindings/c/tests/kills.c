/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Servers and clients in C that are killed at random moments, while calls are unanswered and both pools grow.
 *
 * Flow   "kills MODE COUNT PREFIX": this program again as a server, which is killed while this one calls; then again as a client, which
 *        is killed while this one serves. COUNT times each, in one mode: sync, async, pipelined, watch or limited
 * Order  a call of this program must end with MEMLIFT_PEER_DIED, and a session must go with its client; in the mode limited a call that
 *        nobody answers must end with MEMLIFT_LATE. SIGALRM ends what hangs
 * Owner  a child ends with this program: it reads the end of its stdin
 */
#include <errno.h>
#include <memlift_ipc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Each larger one makes a pool grow. */
static const size_t sizes[] = {40, 5000, 70000, 300000, 1500000, 5000000};
enum { SIZES = sizeof sizes / sizeof *sizes, HELD = 3, LARGE = 5000000, PATIENCE_S = 60 };

static unsigned char data[LARGE];
static const char *program;

static void die(const char *what) {
    printf("%s: %s\n", what, memlift_last_error());
    fflush(stdout);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void pause_ms(double ms) {
    struct timespec time = {(time_t)(ms / 1000), (long)(ms * 1e6) % 1000000000};
    nanosleep(&time, NULL);
}

static void echo(memlift_request *request, void *user) {
    (void)user;
    memlift_request_answer(request, memlift_request_data(request), memlift_request_bytes(request));
}

/* Not answered before somebody calls "forget". */
static struct {
    pthread_mutex_t lock;
    memlift_request *request[1024];
    int count;
} held = {PTHREAD_MUTEX_INITIALIZER, {NULL}, 0};

static void hold(memlift_request *request, void *user) {
    (void)user;
    pthread_mutex_lock(&held.lock);
    if (held.count == 1024) abort();
    held.request[held.count++] = request;
    pthread_mutex_unlock(&held.lock);
}

static void forget(void) {
    pthread_mutex_lock(&held.lock);
    int count = held.count;
    held.count = 0;
    pthread_mutex_unlock(&held.lock);
    for (int i = 0; i < count; i++) memlift_request_fail(held.request[i], "forgotten");
}

static memlift_server *serve(const char *address) {
    memlift_server *server;
    if (memlift_server_bind(address, NULL, &server) != MEMLIFT_OK) die("bind");
    if (memlift_server_register(server, "echo", echo, NULL) != MEMLIFT_OK) die("register");
    if (memlift_server_register(server, "hold", hold, NULL) != MEMLIFT_OK) die("register");
    if (memlift_server_start(server) != MEMLIFT_OK) die("start");
    return server;
}

/* Takes an answer; a code other than MEMLIFT_OK is given on. */
static int take(int code, memlift_answer *answer, size_t bytes) {
    if (code != MEMLIFT_OK) return code;
    if (memlift_answer_bytes(answer) != bytes || memcmp(memlift_answer_data(answer), data, bytes) != 0) die("another answer");
    memlift_answer_free(answer);
    return MEMLIFT_OK;
}

static int sync_calls(const memlift_client *client) {
    for (int i = 0; i < SIZES; i++) {
        memlift_answer *answer = NULL;
        int code = memlift_call(client, "echo", data, sizes[i], NULL, &answer);
        code = take(code, answer, sizes[i]);
        if (code != MEMLIFT_OK) return code;
    }
    return MEMLIFT_OK;
}

/* Longest time that a call took beyond its limit, s. */
static double longest_beyond;

/* Every other call is one that nobody answers. */
static int limited_calls(const memlift_client *client) {
    int code = MEMLIFT_OK;
    for (int i = 0; i < SIZES && code == MEMLIFT_OK; i++) {
        memlift_call_options options = {.timeout_s = (1 + rand() % 10) / 1000.0};
        memlift_answer *answer = NULL;
        double limit = now() + options.timeout_s;
        code = memlift_call(client, i % 2 ? "echo" : "hold", data, sizes[i], &options, &answer);
        double beyond = now() - limit;
        if (beyond > longest_beyond) longest_beyond = beyond;
        code = code == MEMLIFT_LATE ? MEMLIFT_OK : take(code, answer, sizes[i]);
    }
    return code;
}

static int async_calls(const memlift_client *client) {
    int code = MEMLIFT_OK;
    for (int i = 0; i < SIZES && code == MEMLIFT_OK; i++) {
        memlift_job *job[3] = {NULL};
        for (int k = 0; k < 3 && code == MEMLIFT_OK; k++) code = memlift_call_async(client, "echo", data, sizes[i], NULL, &job[k]);
        for (int k = 0; k < 3; k++) {
            memlift_answer *answer = NULL;
            if (code == MEMLIFT_OK) code = memlift_job_wait(job[k], 0, &answer);
            code = take(code, answer, sizes[i]);
            memlift_job_free(job[k]);
        }
    }
    return code;
}

static int pipelined_calls(const memlift_client *client) {
    memlift_pipeline *pipeline = memlift_pipeline_new(client, 4, 0);
    if (pipeline == NULL) die("pipeline");
    uint64_t id = 0;
    int code = MEMLIFT_OK;
    for (int i = 0; i < SIZES && code == MEMLIFT_OK; i++)
        for (int k = 0; k < 3 && code == MEMLIFT_OK; k++) code = memlift_pipeline_submit(pipeline, "echo", data, sizes[i], NULL, &id);
    while (code == MEMLIFT_OK) {
        memlift_answer *answer = NULL;
        code = memlift_pipeline_next(pipeline, 0, &id, &answer);
        if (code == MEMLIFT_OK && id == 0) break;
        if (code == MEMLIFT_OK) memlift_answer_free(answer);
    }
    memlift_pipeline_free(pipeline);
    return code;
}

static int watched_calls(const memlift_client *client) {
    memlift_watch *watch = memlift_watch_new(client);
    if (watch == NULL) die("watch");
    int code = MEMLIFT_OK;
    for (int i = 0; i < SIZES && code == MEMLIFT_OK; i++) {
        uint64_t id = 0;
        code = memlift_watch_submit(watch, "echo", data, sizes[i], NULL, &id);
        while (code == MEMLIFT_OK) {
            memlift_answer *answer = NULL;
            uint64_t got = 0;
            code = memlift_watch_next(watch, &got, &answer);
            if (code == MEMLIFT_OK && got == id) {
                code = take(code, answer, sizes[i]);
                break;
            }
            struct pollfd readable = {memlift_watch_fd(watch), POLLIN, 0};
            if (code == MEMLIFT_OK && got == 0 && poll(&readable, 1, -1) < 0 && errno != EINTR) die("poll");
        }
    }
    memlift_watch_free(watch);
    return code;
}

static const struct {
    const char *name;
    int (*calls)(const memlift_client *);
} modes[] = {{"sync", sync_calls}, {"async", async_calls}, {"pipelined", pipelined_calls}, {"watch", watched_calls},
             {"limited", limited_calls}};

/* One session in that mode, with calls that are never answered; gives the code that ended it. */
static int storm(const char *address, int mode) {
    memlift_client *client;
    int code = memlift_client_connect(address, &client);
    if (code != MEMLIFT_OK) return code;
    memlift_job *job[HELD] = {NULL};
    for (int i = 0; i < HELD && code == MEMLIFT_OK; i++) code = memlift_call_async(client, "hold", data, 5000, NULL, &job[i]);
    if (code == MEMLIFT_OK) code = modes[mode].calls(client);
    if (code != MEMLIFT_OK && modes[mode].calls != watched_calls)
        for (int i = 0; i < HELD; i++) {
            /* They end, too. A watch has given out those of its client. */
            memlift_answer *answer = NULL;
            if (job[i] != NULL && memlift_job_wait(job[i], 0, &answer) != MEMLIFT_PEER_DIED) die("a call that was held");
        }
    for (int i = 0; i < HELD; i++) memlift_job_free(job[i]);
    memlift_client_free(client);
    return code;
}

/* This program as a child, whose stdin and stdout are ours. */
typedef struct child {
    pid_t pid;
    int in, out;
} child;

static child start(const char *role, const char *mode, const char *address) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) die("pipe");
    child made = {fork(), in[1], out[0]};
    if (made.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        for (int fd = 3; fd < 256; fd++) close(fd);
        execl(program, program, role, mode, address, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    char byte;
    if (made.pid < 0 || read(out[0], &byte, 1) != 1) die("a child did not start");
    return made;
}

static void killed(child one) {
    int status;
    kill(one.pid, SIGKILL);
    if (waitpid(one.pid, &status, 0) != one.pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) die("it had ended by itself");
    close(one.in);
    close(one.out);
}

static void *end_with_the_parent(void *unused) {
    char byte;
    while (read(0, &byte, 1) > 0) continue;
    _exit(0);
    return unused;
}

static void be_child(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_with_the_parent, NULL) != 0) die("pthread_create");
    if (write(1, "r", 1) != 1) _exit(1);
}

static struct {
    child server;
    double pause, at;
} victim;

static void *kill_later(void *unused) {
    pause_ms(victim.pause);
    victim.at = now();
    killed(victim.server);
    return unused;
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    program = arguments[0];
    memset(data, 7, sizeof data);
    int mode = 0;
    while (strcmp(modes[mode].name, arguments[2]) != 0)
        if (++mode == (int)(sizeof modes / sizeof *modes)) return 2;
    if (strcmp(arguments[1], "server") == 0) {
        serve(arguments[3]);
        be_child();
        for (;;) pause();
    }
    if (strcmp(arguments[1], "client") == 0) {
        be_child();
        for (;;)
            if (storm(arguments[3], mode) != MEMLIFT_OK) die("a client");
    }
    int kills = atoi(arguments[1]);
    double longest_server = 0, longest_client = 0;
    char address[256], own[256];
    snprintf(own, sizeof own, "%s-own", arguments[3]);
    memlift_server *server = serve(own);
    memlift_client *bystander;
    if (memlift_client_connect(own, &bystander) != MEMLIFT_OK) die("connect");
    srand((unsigned)getpid());
    for (int i = 0; i < kills; i++) {
        alarm(PATIENCE_S);
        snprintf(address, sizeof address, "%s-%d", arguments[3], i);
        victim.server = start("server", modes[mode].name, address);
        victim.pause = rand() % 40000 / 1000.0;
        pthread_t thread;
        if (pthread_create(&thread, NULL, kill_later, NULL) != 0) die("pthread_create");
        int code;
        do code = storm(address, mode);
        while (code == MEMLIFT_OK);
        double ended = now();
        if (code != MEMLIFT_PEER_DIED && code != MEMLIFT_NO_SERVER) die("another end");
        pthread_join(thread, NULL);
        if (ended - victim.at > longest_server) longest_server = ended - victim.at;

        child client = start("client", modes[mode].name, own);
        pause_ms(rand() % 40000 / 1000.0);
        killed(client);
        double start_s = now();
        memlift_load load = {0};
        do {
            /* The server writes how many there are beside an answer. */
            memlift_answer *answer = NULL;
            int code = memlift_call(bystander, "echo", data, 8, NULL, &answer);
            if (take(code, answer, 8) != MEMLIFT_OK) die("a bystander");
            if (memlift_client_load(bystander, &load) != MEMLIFT_OK) die("load");
        } while (load.sessions != 1);
        forget();
        if (now() - start_s > longest_client) longest_client = now() - start_s;
    }
    memlift_client_free(bystander);
    memlift_server_free(server);
    printf("%s: %d servers and %d clients killed; longest until the error %.1f ms, until the session was gone %.1f ms, "
           "beyond a limit %.1f ms\n",
           modes[mode].name, kills, kills, longest_server * 1e3, longest_client * 1e3, longest_beyond * 1e3);
    return 0;
}
