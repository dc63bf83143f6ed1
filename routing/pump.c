/* Relays the usual tokens of running streams from server to client in a thread of its own, without Python's lock.
 *
 * A stream is lent to the pump once its events look alike: same bytes before the text, same bytes after it. While what
 * comes from the server is whole HTTP chunks of that shape, they are sent on as they came and their times are noted.
 * Whatever else comes (another event, a cut chunk, the end) and whatever a slow client does not take is given back with
 * the stream, so that all judgement stays in Python. The pump works on duplicates of both sockets: neither can be
 * closed, and its number reused, under its hands.
 *
 * One lock guards all streams. The thread holds it for one read and one send, Python for the length of a call; the
 * thread never waits for Python's lock.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
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

struct bytes {
    char *data;
    size_t length;
};

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

/* What became of a stream, taken out of it: Python's objects are made of it without the lock, for making them can run
 * any Python code, which may come back here. */
struct news {
    uint64_t key;
    float *gaps_ms;
    size_t gaps;
    double last_s;
    struct bytes unread, unsent;
};

typedef struct {
    PyObject_HEAD
    pthread_mutex_t lock;
    pthread_t thread;
    int running;
    int epoll, stop, given_back; /* descriptors */
    struct stream **streams, *free, *returned;
    uint32_t count;
} Pump;

static void *checked(void *memory)
{
    if (memory == NULL) {
        Py_FatalError("the pump is out of memory");
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

static struct stream *found(Pump *pump, uint64_t key)
{
    uint32_t at = key & UINT32_MAX;
    struct stream *stream = at < pump->count ? pump->streams[at] : NULL;
    return stream != NULL && stream->state != FREE && stream->generation == key >> 32 ? stream : NULL;
}

static struct stream *free_place(Pump *pump)
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
static void let_go(Pump *pump, struct stream *stream)
{
    epoll_ctl(pump->epoll, EPOLL_CTL_DEL, stream->server, NULL);
    close(stream->server);
    close(stream->client);
}

static struct news news_of(struct stream *stream)
{
    struct news news = {key_of(stream), stream->gaps_ms, stream->gaps, stream->last_s, {NULL, 0}, {NULL, 0}};
    stream->gaps_ms = NULL;
    stream->gaps = stream->room = 0;
    return news;
}

/* Ends the stream here, whatever it is at. */
static struct news taken_from(Pump *pump, struct stream *stream)
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

static void forget_news(struct news news)
{
    free(news.gaps_ms);
    forget(&news.unread);
    forget(&news.unsent);
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
static int relay(Pump *pump, struct stream *stream, char *buffer)
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
    Pump *pump = argument;
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

/* For Python */

static int watch(int epoll, int descriptor, uint64_t key)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = key};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event);
}

static int start(Pump *pump)
{
    if (pump->running) {
        return 0;
    }
    int failed = pthread_create(&pump->thread, NULL, run, pump);
    if (failed) {
        errno = failed;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    pump->running = 1;
    return 0;
}

static PyObject *Pump_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(options))
{
    if (!PyArg_ParseTuple(args, "")) {
        return NULL;
    }
    Pump *pump = (Pump *)type->tp_alloc(type, 0);
    if (pump == NULL) {
        return NULL;
    }
    pthread_mutex_init(&pump->lock, NULL);
    pump->epoll = epoll_create1(EPOLL_CLOEXEC);
    pump->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pump->given_back = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pump->epoll < 0 || pump->stop < 0 || pump->given_back < 0 || watch(pump->epoll, pump->stop, STOP) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(pump);
        return NULL;
    }
    return (PyObject *)pump;
}

static void close_descriptor(int *descriptor)
{
    if (*descriptor >= 0) {
        close(*descriptor);
    }
    *descriptor = -1;
}

static PyObject *Pump_close(Pump *pump, PyObject *Py_UNUSED(none))
{
    const uint64_t one = 1;
    if (pump->running) {
        /* The thread never waits for Python, so this is over after the read and send that it is at. */
        if (write(pump->stop, &one, sizeof one) == sizeof one) {
            pthread_join(pump->thread, NULL);
        }
        pump->running = 0;
    }
    for (uint32_t at = 0; at < pump->count; at++) {
        if (pump->streams[at]->state != FREE) {
            forget_news(taken_from(pump, pump->streams[at]));
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
    Py_RETURN_NONE;
}

static void Pump_dealloc(Pump *pump)
{
    PyTypeObject *type = Py_TYPE(pump);
    Py_XDECREF(Pump_close(pump, NULL));
    pthread_mutex_destroy(&pump->lock);
    type->tp_free((PyObject *)pump);
    Py_DECREF(type);
}

static PyObject *Pump_fileno(Pump *pump, PyObject *Py_UNUSED(none))
{
    return PyLong_FromLong(pump->given_back);
}

static PyObject *Pump_attach(Pump *pump, PyObject *args)
{
    int server, client;
    const char *prefix, *suffix;
    Py_ssize_t prefix_length, suffix_length;
    double last_s;
    if (!PyArg_ParseTuple(args, "iiy#y#d", &server, &client, &prefix, &prefix_length, &suffix, &suffix_length, &last_s)) {
        return NULL;
    }
    if (pump->epoll < 0) {
        PyErr_SetString(PyExc_ValueError, "the pump is closed");
        return NULL;
    }
    if (start(pump) < 0) {
        return NULL;
    }
    int own_server = fcntl(server, F_DUPFD_CLOEXEC, 0), own_client = fcntl(client, F_DUPFD_CLOEXEC, 0);
    if (own_server < 0 || own_client < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        close_descriptor(&own_server);
        close_descriptor(&own_client);
        return NULL;
    }
    pthread_mutex_lock(&pump->lock);
    struct stream *stream = free_place(pump);
    uint64_t key = key_of(stream);
    stream->server = own_server;
    stream->client = own_client;
    stream->prefix = copy_of(prefix, (size_t)prefix_length);
    stream->tail.length = (size_t)suffix_length + 2;
    stream->tail.data = checked(malloc(stream->tail.length));
    memcpy(stream->tail.data, suffix, (size_t)suffix_length);
    memcpy(stream->tail.data + suffix_length, "\r\n", 2);
    stream->last_s = last_s;
    stream->state = RELAYING;
    int failed = watch(pump->epoll, own_server, key) < 0 ? errno : 0;
    if (failed) {
        forget_news(taken_from(pump, stream));
    }
    pthread_mutex_unlock(&pump->lock);
    if (failed) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromUnsignedLongLong(key);
}

static PyObject *python_bytes(const void *data, size_t length)
{
    return PyBytes_FromStringAndSize(data, (Py_ssize_t)length);
}

/* (gaps, time of the last token); takes the news over. */
static PyObject *progress_of(struct news news)
{
    PyObject *told = Py_BuildValue("Nd", python_bytes(news.gaps_ms, news.gaps * sizeof *news.gaps_ms), news.last_s);
    forget_news(news);
    return told;
}

/* (gaps, time of the last token, bytes for the client, bytes to be read); takes the news over. */
static PyObject *end_of(struct news news)
{
    PyObject *told = Py_BuildValue("NdNN", python_bytes(news.gaps_ms, news.gaps * sizeof *news.gaps_ms), news.last_s,
                                   python_bytes(news.unsent.data, news.unsent.length),
                                   python_bytes(news.unread.data, news.unread.length));
    forget_news(news);
    return told;
}

static PyObject *Pump_detach(Pump *pump, PyObject *argument)
{
    uint64_t key = PyLong_AsUnsignedLongLong(argument);
    struct news news;
    if (PyErr_Occurred()) {
        return NULL;
    }
    pthread_mutex_lock(&pump->lock);
    struct stream *stream = found(pump, key);
    if (stream != NULL) {
        news = taken_from(pump, stream);
    }
    pthread_mutex_unlock(&pump->lock);
    if (stream == NULL) {
        PyErr_SetObject(PyExc_KeyError, argument);
        return NULL;
    }
    return end_of(news);
}

/* Appends (key, value), and takes `value` over. */
static int append(PyObject *list, uint64_t key, PyObject *value)
{
    PyObject *row = value == NULL ? NULL : Py_BuildValue("KN", (unsigned long long)key, value);
    int failed = row == NULL || PyList_Append(list, row) < 0;
    Py_XDECREF(row);
    return failed ? -1 : 0;
}

static PyObject *Pump_progress(Pump *pump, PyObject *Py_UNUSED(none))
{
    PyObject *list = PyList_New(0);
    for (uint32_t at = 0; list != NULL && at < pump->count; at++) {
        struct news news = {0};
        pthread_mutex_lock(&pump->lock);
        struct stream *stream = pump->streams[at];
        if (stream->state == RELAYING && stream->gaps) {
            news = news_of(stream);
        }
        pthread_mutex_unlock(&pump->lock);
        if (news.gaps && append(list, news.key, progress_of(news)) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *Pump_take_back(Pump *pump, PyObject *Py_UNUSED(none))
{
    uint64_t count;
    if (read(pump->given_back, &count, sizeof count) < 0 && errno != EAGAIN) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *list = PyList_New(0);
    while (list != NULL) {
        struct news news;
        pthread_mutex_lock(&pump->lock);
        struct stream *stream = pump->returned;
        if (stream != NULL) {
            news = taken_from(pump, stream);
        }
        pthread_mutex_unlock(&pump->lock);
        if (stream == NULL) {
            break;
        }
        if (append(list, news.key, end_of(news)) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyMethodDef methods[] = {
    {"attach", (PyCFunction)Pump_attach, METH_VARARGS,
     "attach(server, client, prefix, suffix, last_s) -> key. Relays from one socket to the other from now on. OSError."},
    {"detach", (PyCFunction)Pump_detach, METH_O,
     "detach(key) -> (gaps, last_s, unsent, unread). Returns when both sockets are no longer used. KeyError."},
    {"progress", (PyCFunction)Pump_progress, METH_NOARGS,
     "progress() -> [(key, (gaps, last_s))] of the streams that had tokens since; gaps are floats in ms."},
    {"take_back", (PyCFunction)Pump_take_back, METH_NOARGS,
     "take_back() -> [(key, (gaps, last_s, unsent, unread))] of the streams that were given back."},
    {"fileno", (PyCFunction)Pump_fileno, METH_NOARGS, "Readable when streams were given back."},
    {"close", (PyCFunction)Pump_close, METH_NOARGS, "Ends the thread and lets go of every stream."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, Pump_new},
    {Py_tp_dealloc, Pump_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"routing._pump.Pump", sizeof(Pump), 0, Py_TPFLAGS_DEFAULT, slots};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_pump", .m_doc = "Relays the usual tokens of running streams.", .m_size = -1,
};

PyMODINIT_FUNC PyInit__pump(void)
{
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&spec);
    if (made == NULL || type == NULL || PyModule_AddObject(made, "Pump", type) < 0) {
        Py_XDECREF(made);
        Py_XDECREF(type);
        return NULL;
    }
    return made;
}
