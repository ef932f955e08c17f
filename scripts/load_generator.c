/* Loads a server that speaks vLLM's HTTP: N connections that stay open, R requests in all, one token each.
 *
 *   load_generator HOST PORT CONNECTIONS REQUESTS
 *
 * prints requests/s, median and p99 latency in milliseconds. Small on purpose: what is measured must be the
 * server. Each prompt has 16 tokens of its own, so nothing is cached. Exits 1 unless every answer is a 200.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PROMPT_TOKENS = 16, VOCABULARY = 30000, BUFFER_BYTES = 16384, EVENTS = 256 };

typedef struct {
    int fd;
    int sent, length;      /* of the request */
    int have;              /* bytes of the answer so far */
    double begin_s;
    char out[1024];
    char in[BUFFER_BYTES];
} Connection;

static uint64_t state = 0x9E3779B97F4A7C15u;
static long started, answered, wanted;
static double *latencies_s;

static void fail(const char *what) {
    fprintf(stderr, "load_generator: %s: %s\n", what, errno ? strerror(errno) : "unexpected answer");
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static unsigned next_token(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return 300 + state % (VOCABULARY - 300);
}

static void fill_request(Connection *c) {
    char body[512];
    int n = snprintf(body, sizeof body, "{\"prompt\":[");
    for (int i = 0; i < PROMPT_TOKENS; i++)
        n += snprintf(body + n, sizeof body - n, i ? ",%u" : "%u", next_token());
    n += snprintf(body + n, sizeof body - n, "],\"max_tokens\":1,\"temperature\":0}");
    c->length = snprintf(c->out, sizeof c->out,
                         "POST /v1/completions HTTP/1.1\r\nHost: load\r\nX-Request-Id: load-%ld\r\n"
                         "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                         started, n, body);
    c->sent = c->have = 0;
    c->begin_s = now_s();
    started++;
}

/* Writes what the socket takes; the request fits into its buffer after a first answer, so this rarely waits. */
static void push(Connection *c) {
    while (c->sent < c->length) {
        ssize_t n = write(c->fd, c->out + c->sent, c->length - c->sent);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n <= 0) fail("write");
        c->sent += n;
    }
}

static int is_complete(Connection *c) {
    c->in[c->have] = 0;
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) return 0;
    char *length = strcasestr(c->in, "Content-Length:");
    errno = 0;
    if (strncmp(c->in, "HTTP/1.1 200", 12) || !length || length > end) fail(c->in);
    return c->have >= end + 4 - c->in + atoi(length + 15);
}

static void take(Connection *c) {
    ssize_t n = read(c->fd, c->in + c->have, BUFFER_BYTES - 1 - c->have);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) fail("read");
    c->have += n;
    if (!is_complete(c)) return;
    latencies_s[answered++] = now_s() - c->begin_s;
    if (started < wanted) {
        fill_request(c);
        push(c);
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: load_generator HOST PORT CONNECTIONS REQUESTS\n");
        return 2;
    }
    int count = atoi(argv[3]), one = 1;
    wanted = atol(argv[4]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1 || count < 1 || wanted < count) {
        fprintf(stderr, "load_generator: HOST is an IPv4 address, and REQUESTS at least CONNECTIONS\n");
        return 2;
    }
    Connection *all = calloc(count, sizeof *all);
    latencies_s = calloc(wanted, sizeof *latencies_s);
    int poll = epoll_create1(0);
    if (!all || !latencies_s || poll < 0) fail("start");
    double begin_s = now_s();
    for (int i = 0; i < count; i++) {
        Connection *c = &all[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll");
        fill_request(c);
        push(c);
    }
    while (answered < wanted) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(poll, events, EVENTS, 30000);
        if (n == 0) fail("no answer within 30 s");
        for (int i = 0; i < n; i++) take(events[i].data.ptr);
    }
    double whole_s = now_s() - begin_s;
    qsort(latencies_s, wanted, sizeof *latencies_s, compare);
    printf("%.0f %.2f %.2f\n", wanted / whole_s, latencies_s[wanted / 2] * 1e3,
           latencies_s[wanted * 99 / 100] * 1e3);
    return 0;
}
