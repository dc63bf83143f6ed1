/* Relays the usual tokens of running streams from server to client in a thread of its own, without Python's lock.
 *
 * A stream is lent to the pump once its events look alike: same bytes before the text, same bytes after it. While what
 * comes from the server is whole HTTP chunks of that shape, they are sent on as they came and their times are noted.
 * Whatever else comes (another event, a cut chunk, the end) and whatever a slow client does not take is given back with
 * the stream, so that all judgement stays in Python. The event that ends the answer is a token as well: it is relayed,
 * and given back for Python to read. The pump works on duplicates of both sockets: neither can be closed, and its number
 * reused, under its hands.
 *
 * One lock guards all streams. The thread holds it for one read and one send, Python for the length of a call; the
 * thread knows nothing of Python and never waits for its lock.
 */
#define _GNU_SOURCE /* memmem */
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
    struct shape shape;        /* its parts are the stream's own; the last of each event ends with the chunk's line break */
    double last_s;             /* when its last token came, on CLOCK_MONOTONIC */
    float *gaps_ms;
    size_t gaps, room;
    struct bytes unread, answered, unsent;
};

/* The event that ended the answer, as it came and as it goes on. */
struct ending {
    size_t length, whole;       /* of its chunk; and with that of the usage that follows it and is not for the client */
    const char *fingerprint;    /* a JSON string out of that usage, which belongs into the last event then */
    size_t fingerprint_length;
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

static struct bytes copy_with_line_break(struct bytes bytes)
{
    struct bytes copy = {checked(malloc(bytes.length + 2)), bytes.length + 2};
    memcpy(copy.data, bytes.data, bytes.length);
    memcpy(copy.data + bytes.length, "\r\n", 2);
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
    news.answered = stream->answered;
    news.unsent = stream->unsent;
    forget(&stream->shape.prefix);
    forget(&stream->shape.suffix);
    forget(&stream->shape.before_reason);
    forget(&stream->shape.after_reason);
    stream->unread = stream->answered = stream->unsent = (struct bytes){NULL, 0};
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

/* The chunk that `data` begins with: its length, 0 when it is not a whole one, and where its event is, line break included. */
static size_t chunk_at(const char *data, size_t length, struct bytes *event)
{
    size_t line = 0, size = 0;
    int digit;
    while (line < length && line < SIZE_DIGITS && (digit = digit_of(data[line])) >= 0) {
        size = 16 * size + (size_t)digit;
        line++;
    }
    if (line == 0 || length < line + 2 || data[line] != '\r' || data[line + 1] != '\n' || length - line - 2 < size + 2) {
        return 0;
    }
    event->data = (char *)data + line + 2;
    event->length = size + 2;
    return line + 2 + size + 2;
}

static int begins_with(struct bytes whole, struct bytes part)
{
    return whole.length >= part.length && memcmp(whole.data, part.data, part.length) == 0;
}

static int ends_with(struct bytes whole, struct bytes part)
{
    return whole.length >= part.length && memcmp(whole.data + whole.length - part.length, part.data, part.length) == 0;
}

static struct bytes without_ends(struct bytes whole, struct bytes first, struct bytes last)
{
    return (struct bytes){whole.data + first.length, whole.length - first.length - last.length};
}

static const char *found_in(struct bytes whole, const char *words)
{
    return memmem(whole.data, whole.length, words, strlen(words));
}

/* The length of the chunk that `data` begins with, when it is a whole one that carries one usual token; else 0. */
static size_t token_chunk(const struct shape *shape, const char *data, size_t length)
{
    struct bytes event;
    size_t chunk = chunk_at(data, length, &event);
    if (chunk == 0 || event.length <= shape->prefix.length + shape->suffix.length) {
        return 0;
    }
    if (!begins_with(event, shape->prefix) || !ends_with(event, shape->suffix)) {
        return 0;
    }
    struct bytes text = without_ends(event, shape->prefix, shape->suffix);
    return is_text(text.data, text.length) ? chunk : 0;
}

/* Whether this event is a usual token with a reason for the answer's end: a string, and plain values after it. */
static int ends_answer(const struct shape *shape, struct bytes event)
{
    size_t around = shape->prefix.length + shape->before_reason.length + shape->after_reason.length;
    if (shape->after_reason.length == 0 || event.length <= around || !begins_with(event, shape->prefix) ||
        !ends_with(event, shape->after_reason)) {
        return 0;
    }
    struct bytes inside = without_ends(event, shape->prefix, shape->after_reason);
    const char *quote = memchr(inside.data, '"', inside.length);
    if (quote == NULL || !is_text(inside.data, (size_t)(quote - inside.data))) {
        return 0;
    }
    struct bytes rest = {(char *)quote, inside.length - (size_t)(quote - inside.data)};
    if (!begins_with(rest, shape->before_reason)) {
        return 0;
    }
    struct bytes reason = without_ends(rest, shape->before_reason, (struct bytes){NULL, 0});
    return reason.length > 2 && reason.data[0] == '"' && reason.data[1] != '"' && !memchr(reason.data, '\\', reason.length) &&
           !memchr(reason.data, '{', reason.length) && !memchr(reason.data, '[', reason.length);
}

/* Whether this is a usage event, and which fingerprint it brings. */
static int reads_usage(struct bytes event, struct ending *ending)
{
    const char *blank = found_in(event, "\n\n");
    if (blank == NULL || blank + 4 != event.data + event.length) {
        return 0; /* Other events are in the same chunk, the end marker perhaps. */
    }
    if (!found_in(event, "\"choices\":[]") || !found_in(event, "\"usage\":{") || found_in(event, "\"error\"")) {
        return 0;
    }
    const char *name = "\"system_fingerprint\":", *value = found_in(event, name);
    if (value == NULL) {
        return 1;
    }
    value += strlen(name);
    size_t left = (size_t)(event.data + event.length - value);
    if (left > 4 && memcmp(value, "null", 4) == 0) {
        return 1;
    }
    const char *end = *value == '"' ? memchr(value + 1, '"', left - 1) : NULL;
    if (end == NULL || memchr(value, '\\', (size_t)(end - value))) {
        return 0;
    }
    ending->fingerprint = value;
    ending->fingerprint_length = (size_t)(end + 1 - value);
    return 1;
}

/* Whether `data` begins with the event that ends the answer, and with all that is needed to pass it on. */
static int finds_ending(const struct shape *shape, const char *data, size_t length, struct ending *ending)
{
    struct bytes event;
    memset(ending, 0, sizeof *ending);
    ending->length = ending->whole = chunk_at(data, length, &event);
    if (ending->length == 0 || !ends_answer(shape, event)) {
        return 0;
    }
    if (!shape->drops_usage) {
        return 1;
    }
    size_t usage = chunk_at(data + ending->length, length - ending->length, &event);
    ending->whole += usage;
    return usage > 0 && reads_usage(event, ending);
}

/* What the client gets: tokens that passed and the last event, with the fingerprint at the end of its object. */
static struct bytes with_ending(const char *data, size_t before, const struct ending *ending)
{
    struct bytes event;
    chunk_at(data + before, ending->length, &event);
    static const char name[] = ",\"system_fingerprint\":", closing[] = "}\n\n\r\n";
    size_t kept = event.length - strlen(closing), added = strlen(name) + ending->fingerprint_length;
    struct bytes made = {checked(malloc(before + SIZE_DIGITS + 3 + event.length + added)), before};
    memcpy(made.data, data, before);
    made.length += (size_t)sprintf(made.data + made.length, "%zx\r\n", event.length - 2 + added);
    memcpy(made.data + made.length, event.data, kept);
    memcpy(made.data + made.length + kept, name, strlen(name));
    memcpy(made.data + made.length + kept + strlen(name), ending->fingerprint, ending->fingerprint_length);
    memcpy(made.data + made.length + kept + added, closing, strlen(closing));
    made.length += kept + added + strlen(closing);
    return made;
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

static void give_back(struct pump *pump, struct stream *stream)
{
    let_go(pump, stream);
    stream->state = GIVEN_BACK;
    stream->next = pump->returned;
    pump->returned = stream;
}

/* Relays what passed and the event that ends the answer, which Python has yet to read. */
static void relay_end(struct stream *stream, const char *data, size_t before, size_t length, const struct ending *ending)
{
    struct bytes out = {(char *)data, before + ending->length}, made = {NULL, 0};
    if (ending->fingerprint) {
        out = made = with_ending(data, before, ending);
    }
    size_t taken = sent(stream->client, out.data, out.length);
    stream->unsent = copy_of(out.data + taken, out.length - taken);
    stream->answered = copy_of(data + before, ending->whole);
    stream->unread = copy_of(data + before + ending->whole, length - before - ending->whole);
    forget(&made);
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
    while ((chunk = token_chunk(&stream->shape, buffer + end, length - end)) > 0) {
        end += chunk;
        tokens++;
    }
    struct ending ending;
    int ends = finds_ending(&stream->shape, buffer + end, length - end, &ending);
    if (tokens + (size_t)ends) {
        count_tokens(stream, tokens + (size_t)ends, at_s);
    }
    if (ends) {
        relay_end(stream, buffer, end, length, &ending);
        give_back(pump, stream);
        return 1;
    }
    size_t taken = sent(stream->client, buffer, end);
    if (length > 0 && end == length && taken == end) {
        return 0;
    }
    stream->unsent = copy_of(buffer + taken, end - taken);
    stream->unread = copy_of(buffer + end, length - end);
    give_back(pump, stream);
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
    forget(&news->answered);
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
static int add_stream(struct pump *pump, int server, int client, const struct shape *shape, double last_s, uint64_t *key)
{
    pthread_mutex_lock(&pump->lock);
    struct stream *stream = free_place(pump);
    *key = key_of(stream);
    stream->server = server;
    stream->client = client;
    stream->shape.prefix = copy_of(shape->prefix.data, shape->prefix.length);
    stream->shape.suffix = copy_with_line_break(shape->suffix);
    stream->shape.before_reason = copy_of(shape->before_reason.data, shape->before_reason.length);
    stream->shape.after_reason = shape->after_reason.length ? copy_with_line_break(shape->after_reason) : (struct bytes){NULL, 0};
    stream->shape.drops_usage = shape->drops_usage;
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

int pump_attach(struct pump *pump, int server, int client, const struct shape *shape, double last_s, uint64_t *key)
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
    return add_stream(pump, own_server, own_client, shape, last_s, key);
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
