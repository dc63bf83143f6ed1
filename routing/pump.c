/* Relays the usual tokens of running streams from server to client in a thread of its own, without Python's lock.
 *
 * A stream is lent to the pump once its events look alike: same bytes before the text, same bytes after it. While what
 * comes from the server is whole HTTP chunks of that shape, they are sent on as they came and their times are noted.
 * Whatever else comes (another event, a cut chunk, the end) and whatever a slow client does not take is given back with
 * the stream, so that all judgement stays in Python. The pump works on duplicates of both sockets: neither can be
 * closed, and its number reused, under its hands.
 *
 * One lock guards all streams. The thread holds it for one read and one send, Python for the length of a call; the
 * thread knows nothing of Python and never waits for its lock.
 */
#include "pump.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES (64 * 1024)
#define EVENTS 64
#define SIZE_DIGITS 8
#define STOP UINT64_MAX

enum state { FREE, RELAYING, GIVEN_BACK };

struct stream {
    enum state state;
    uint32_t at, generation;   /* its place, and how often that was used before */
    struct stream *next;       /* in the list of the free ones, or of those given back */
    int server, client;
    struct bytes prefix, tail; /* of the event; the tail ends with the chunk's line break */
    double last_s;             /* when its last token came, on CLOCK_MONOTONIC */
    float *gaps_ms;
    size_t gaps, room;
    struct bytes unread, unsent;
};

static void *checked(void *memory)
{
    if (memory == NULL) {
        fputs("the router's pump is out of memory\n", stderr);
        abort();
    }
    return memory;
}

static struct bytes copy_of(const char *data, size_t length)
{
    struct bytes copy = {NULL, length};
    if (length) {
        copy.data = checked(malloc(length));
        memcpy(copy.data, data, length);
    }
    return copy;
}

static void forget(struct bytes *bytes)
{
    free(bytes->data);
    bytes->data = NULL;
    bytes->length = 0;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Streams. All of these are called with the lock held. */

static uint64_t key_of(const struct stream *stream)
{
    return (uint64_t)stream->generation << 32 | stream->at;
}

static struct stream *found(struct pump *pump, uint64_t key)
{
    uint32_t at = key & UINT32_MAX;
    struct stream *stream = at < pump->count ? pump->streams[at] : NULL;
    return stream != NULL && stream->state != FREE && stream->generation == key >> 32 ? stream : NULL;
}

static struct stream *free_place(struct pump *pump)
{
    struct stream *stream = pump->free;
    if (stream != NULL) {
        pump->free = stream->next;
        return stream;
    }
    pump->streams = checked(realloc(pump->streams, (pump->count + 1) * sizeof *pump->streams));
    stream = pump->streams[pump->count] = checked(calloc(1, sizeof *stream));
    stream->at = pump->count++;
    return stream;
}

/* Closing the pump's own duplicate of a socket does not take it out of epoll, which knows the socket, not its number. */
static void let_go(struct pump *pump, struct stream *stream)
{
    epoll_ctl(pump->epoll, EPOLL_CTL_DEL, stream->server, NULL);
    close(stream->server);
    close(stream->client);
}

static struct news news_of(struct stream *stream)
{
    struct news news = {.key = key_of(stream), .gaps_ms = stream->gaps_ms, .gaps = stream->gaps, .last_s = stream->last_s};
    stream->gaps_ms = NULL;
    stream->gaps = stream->room = 0;
    return news;
}

/* Ends the stream here, whatever it is at. */
static struct news taken_from(struct pump *pump, struct stream *stream)
{
    if (stream->state == RELAYING) {
        let_go(pump, stream);
    } else {
        struct stream **link = &pump->returned;
        while (*link != stream) {
            link = &(*link)->next;
        }
        *link = stream->next;
    }
    struct news news = news_of(stream);
    news.unread = stream->unread;
    news.unsent = stream->unsent;
    forget(&stream->prefix);
    forget(&stream->tail);
    stream->unread.data = stream->unsent.data = NULL;
    stream->state = FREE;
    stream->generation++;
    stream->next = pump->free;
    pump->free = stream;
    return news;
}

static void add_gap(struct stream *stream, float gap_ms)
{
    if (stream->gaps == stream->room) {
        stream->room = stream->room ? 2 * stream->room : 64;
        stream->gaps_ms = checked(realloc(stream->gaps_ms, stream->room * sizeof *stream->gaps_ms));
    }
    stream->gaps_ms[stream->gaps++] = gap_ms;
}

static void count_tokens(struct stream *stream, size_t tokens, double at_s)
{
    add_gap(stream, (float)((at_s - stream->last_s) * 1e3));
    for (size_t more = 1; more < tokens; more++) {
        add_gap(stream, 0);
    }
    stream->last_s = at_s;
}

/* Recognising tokens */

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Whether these bytes are the inside of one JSON string that is not empty: a quote only behind a backslash. */
static int is_text(const char *text, size_t length)
{
    if (length == 0) {
        return 0;
    }
    for (size_t at = 0; at < length; at++) {
        if (text[at] == '"') {
            return 0;
        }
        if (text[at] == '\\' && ++at == length) {
            return 0;
        }
    }
    return 1;
}

/* The length of the chunk that `data` begins with, when it is a whole one that carries one usual token; else 0. */
static size_t token_chunk(const struct stream *stream, const char *data, size_t length)
{
    size_t line = 0, size = 0;
    int digit;
    while (line < length && line < SIZE_DIGITS && (digit = digit_of(data[line])) >= 0) {
        size = 16 * size + (size_t)digit;
        line++;
    }
    if (line == 0 || length < line + 2 || data[line] != '\r' || data[line + 1] != '\n') {
        return 0;
    }
    const char *event = data + line + 2;
    size_t whole = size + 2, around = stream->prefix.length + stream->tail.length;
    if (length - line - 2 < whole || whole <= around) {
        return 0;
    }
    if (memcmp(event, stream->prefix.data, stream->prefix.length) != 0) {
        return 0;
    }
    if (memcmp(event + whole - stream->tail.length, stream->tail.data, stream->tail.length) != 0) {
        return 0;
    }
    return is_text(event + stream->prefix.length, whole - around) ? line + 2 + whole : 0;
}

/* Relaying */

/* How much the client took. One that is gone takes everything: its own connection tells of it. */
static size_t sent(int client, const char *data, size_t length)
{
    ssize_t taken = length ? send(client, data, length, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    if (taken >= 0) {
        return (size_t)taken;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : length;
}

/* 1 when the stream was given back. An end or error of the server's connection is left for Python to meet. */
static int relay(struct pump *pump, struct stream *stream, char *buffer)
{
    ssize_t got = recv(stream->server, buffer, READ_BYTES, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return 0;
    }
    size_t length = got > 0 ? (size_t)got : 0, end = 0, tokens = 0, chunk;
    double at_s = now_s();
    while ((chunk = token_chunk(stream, buffer + end, length - end)) > 0) {
        end += chunk;
        tokens++;
    }
    if (tokens) {
        count_tokens(stream, tokens, at_s);
    }
    size_t taken = sent(stream->client, buffer, end);
    if (length > 0 && end == length && taken == end) {
        return 0;
    }
    stream->unsent = copy_of(buffer + taken, end - taken);
    stream->unread = copy_of(buffer + end, length - end);
    let_go(pump, stream);
    stream->state = GIVEN_BACK;
    stream->next = pump->returned;
    pump->returned = stream;
    return 1;
}

static void *run(void *argument)
{
    struct pump *pump = argument;
    char *buffer = checked(malloc(READ_BYTES));
    struct epoll_event events[EVENTS];
    const uint64_t one = 1;
    for (;;) {
        int count = epoll_wait(pump->epoll, events, EVENTS, -1), given_back = 0;
        for (int at = 0; at < count; at++) {
            if (events[at].data.u64 == STOP) {
                free(buffer);
                return NULL;
            }
            pthread_mutex_lock(&pump->lock);
            struct stream *stream = found(pump, events[at].data.u64);
            if (stream != NULL && stream->state == RELAYING) {
                given_back |= relay(pump, stream, buffer);
            }
            pthread_mutex_unlock(&pump->lock);
        }
        if (given_back && write(pump->given_back, &one, sizeof one) < 0) {
            continue; /* The counter is full, so it is being told already. */
        }
    }
}

/* For its owner */

static int watch(int epoll, int descriptor, uint64_t key)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = key};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event);
}

static void close_descriptor(int *descriptor)
{
    if (*descriptor >= 0) {
        close(*descriptor);
    }
    *descriptor = -1;
}

void forget_news(struct news *news)
{
    free(news->gaps_ms);
    forget(&news->unsent);
    forget(&news->unread);
}

int pump_open(struct pump *pump)
{
    memset(pump, 0, sizeof *pump);
    pthread_mutex_init(&pump->lock, NULL);
    pump->epoll = epoll_create1(EPOLL_CLOEXEC);
    pump->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pump->given_back = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return pump->epoll < 0 || pump->stop < 0 || pump->given_back < 0 ? -1 : watch(pump->epoll, pump->stop, STOP);
}

void pump_close(struct pump *pump)
{
    const uint64_t one = 1;
    struct news news;
    /* The thread never waits for us, so this is over after the read and send that it is at. */
    if (pump->running && write(pump->stop, &one, sizeof one) == sizeof one) {
        pthread_join(pump->thread, NULL);
    }
    pump->running = 0;
    for (uint32_t at = 0; at < pump->count; at++) {
        if (pump->streams[at]->state != FREE) {
            news = taken_from(pump, pump->streams[at]);
            forget_news(&news);
        }
    }
    for (uint32_t at = 0; at < pump->count; at++) {
        free(pump->streams[at]);
    }
    free(pump->streams);
    pump->streams = NULL;
    pump->free = NULL;
    pump->count = 0;
    close_descriptor(&pump->epoll);
    close_descriptor(&pump->stop);
    close_descriptor(&pump->given_back);
}

static int start(struct pump *pump)
{
    int failed = pump->running ? 0 : pthread_create(&pump->thread, NULL, run, pump);
    if (failed) {
        errno = failed;
        return -1;
    }
    pump->running = 1;
    return 0;
}

/* Takes the descriptors over when it succeeds. */
static int add_stream(struct pump *pump, int server, int client, struct bytes prefix, struct bytes suffix, double last_s,
                      uint64_t *key)
{
    pthread_mutex_lock(&pump->lock);
    struct stream *stream = free_place(pump);
    *key = key_of(stream);
    stream->server = server;
    stream->client = client;
    stream->prefix = copy_of(prefix.data, prefix.length);
    stream->tail.length = suffix.length + 2;
    stream->tail.data = checked(malloc(stream->tail.length));
    memcpy(stream->tail.data, suffix.data, suffix.length);
    memcpy(stream->tail.data + suffix.length, "\r\n", 2);
    stream->last_s = last_s;
    stream->state = RELAYING;
    int failed = watch(pump->epoll, server, *key) < 0 ? errno : 0;
    if (failed) {
        struct news news = taken_from(pump, stream);
        forget_news(&news);
        errno = failed;
    }
    pthread_mutex_unlock(&pump->lock);
    return failed ? -1 : 0;
}

int pump_attach(struct pump *pump, int server, int client, struct bytes prefix, struct bytes suffix, double last_s,
                uint64_t *key)
{
    if (start(pump) < 0) {
        return -1;
    }
    int own_server = fcntl(server, F_DUPFD_CLOEXEC, 0), own_client = fcntl(client, F_DUPFD_CLOEXEC, 0);
    if (own_server < 0 || own_client < 0) {
        int failed = errno;
        close_descriptor(&own_server);
        close_descriptor(&own_client);
        errno = failed;
        return -1;
    }
    return add_stream(pump, own_server, own_client, prefix, suffix, last_s, key);
}

int pump_detach(struct pump *pump, uint64_t key, struct news *news)
{
    pthread_mutex_lock(&pump->lock);
    struct stream *stream = found(pump, key);
    if (stream != NULL) {
        *news = taken_from(pump, stream);
    }
    pthread_mutex_unlock(&pump->lock);
    return stream != NULL;
}

int pump_progress(struct pump *pump, uint32_t at, struct news *news)
{
    pthread_mutex_lock(&pump->lock);
    struct stream *stream = pump->streams[at];
    int any = stream->state == RELAYING && stream->gaps > 0;
    if (any) {
        *news = news_of(stream);
    }
    pthread_mutex_unlock(&pump->lock);
    return any;
}

int pump_take_back(struct pump *pump, struct news *news)
{
    pthread_mutex_lock(&pump->lock);
    struct stream *stream = pump->returned;
    if (stream != NULL) {
        *news = taken_from(pump, stream);
    }
    pthread_mutex_unlock(&pump->lock);
    return stream != NULL;
}
