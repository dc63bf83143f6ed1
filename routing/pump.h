/* Running streams lent to a thread that relays their usual tokens. No Python here; `pump_module.c` is its face. */
#ifndef SWITCHYARD_PUMP_H
#define SWITCHYARD_PUMP_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    char *data;
    size_t length;
};

/* What became of a stream, taken out of it: the receiver owns it, and ends it with `forget_news`. */
struct news {
    uint64_t key;
    float *gaps_ms;
    size_t gaps;
    double last_s; /* when its last token came, on CLOCK_MONOTONIC */
    struct bytes unsent, answered, unread;
};

/* How the events of a stream look: the bytes around the text of a token, and those around the reason in the event that
 * ends the answer, both empty when that one is not to be relayed. */
struct shape {
    struct bytes prefix, suffix, before_reason, after_reason;
    int drops_usage; /* the client did not ask for the usage event that follows */
};

struct pump {
    pthread_mutex_t lock; /* of the streams: the thread holds it for one read and one send */
    pthread_t thread;
    int running;
    int epoll, stop, given_back; /* descriptors; the last is readable when streams were given back */
    struct stream **streams, *free, *returned;
    uint32_t count;
};

/* 0, or -1 with errno. What was opened is closed by `pump_close` in either case. */
int pump_open(struct pump *pump);

/* Ends the thread and lets go of every stream. */
void pump_close(struct pump *pump);

/* Relays from one socket to the other from now on, and starts the thread first of all. Keeps copies of what `shape` points
 * to. 0, or -1 with errno. */
int pump_attach(struct pump *pump, int server, int client, const struct shape *shape, double last_s, uint64_t *key);

/* Each of these: 1 with news, 0 when there are none. */

/* Ends the stream, whatever it is at. Neither of its sockets is used when this returns. */
int pump_detach(struct pump *pump, uint64_t key, struct news *news);

/* Of the stream at a place below `count`, which goes on: the gaps since the last time. */
int pump_progress(struct pump *pump, uint32_t at, struct news *news);

/* Of one of the streams that were given back. */
int pump_take_back(struct pump *pump, struct news *news);

void forget_news(struct news *news);

#endif
