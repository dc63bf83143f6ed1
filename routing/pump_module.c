/* The pump (`pump.h`) as Python sees it: the module `routing._pump`.
 *
 * Objects are made of a stream's news when the pump's lock is free again: making them can run any Python code, which may
 * come back here.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <unistd.h>

#include "pump.h"

typedef struct {
    PyObject_HEAD
    struct pump pump;
} Pump;

static PyObject *Pump_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(options))
{
    if (!PyArg_ParseTuple(args, "")) {
        return NULL;
    }
    Pump *self = (Pump *)type->tp_alloc(type, 0);
    if (self != NULL && pump_open(&self->pump) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *Pump_close(Pump *self, PyObject *Py_UNUSED(none))
{
    pump_close(&self->pump);
    Py_RETURN_NONE;
}

static void Pump_dealloc(Pump *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pump_close(&self->pump);
    pthread_mutex_destroy(&self->pump.lock);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *Pump_fileno(Pump *self, PyObject *Py_UNUSED(none))
{
    return PyLong_FromLong(self->pump.given_back);
}

static PyObject *Pump_attach(Pump *self, PyObject *args)
{
    int server, client;
    struct shape shape;
    Py_ssize_t lengths[4];
    double last_s;
    uint64_t key;
    if (!PyArg_ParseTuple(args, "ii(y#y#y#y#p)d", &server, &client, &shape.prefix.data, &lengths[0], &shape.suffix.data,
                          &lengths[1], &shape.before_reason.data, &lengths[2], &shape.after_reason.data, &lengths[3],
                          &shape.drops_usage, &last_s)) {
        return NULL;
    }
    if (self->pump.epoll < 0) {
        PyErr_SetString(PyExc_ValueError, "the pump is closed");
        return NULL;
    }
    shape.prefix.length = (size_t)lengths[0];
    shape.suffix.length = (size_t)lengths[1];
    shape.before_reason.length = (size_t)lengths[2];
    shape.after_reason.length = (size_t)lengths[3];
    if (pump_attach(&self->pump, server, client, &shape, last_s, &key) < 0) {
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
    forget_news(&news);
    return told;
}

/* (gaps, time of the last token, bytes for the client, bytes that it got unread, bytes to be read); takes the news over. */
static PyObject *end_of(struct news news)
{
    PyObject *told = Py_BuildValue("NdNNN", python_bytes(news.gaps_ms, news.gaps * sizeof *news.gaps_ms), news.last_s,
                                   python_bytes(news.unsent.data, news.unsent.length),
                                   python_bytes(news.answered.data, news.answered.length),
                                   python_bytes(news.unread.data, news.unread.length));
    forget_news(&news);
    return told;
}

static PyObject *Pump_detach(Pump *self, PyObject *argument)
{
    uint64_t key = PyLong_AsUnsignedLongLong(argument);
    struct news news;
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!pump_detach(&self->pump, key, &news)) {
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

static PyObject *Pump_progress(Pump *self, PyObject *Py_UNUSED(none))
{
    PyObject *list = PyList_New(0);
    struct news news;
    for (uint32_t at = 0; list != NULL && at < self->pump.count; at++) {
        if (pump_progress(&self->pump, at, &news) && append(list, news.key, progress_of(news)) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *Pump_take_back(Pump *self, PyObject *Py_UNUSED(none))
{
    uint64_t count;
    struct news news;
    if (read(self->pump.given_back, &count, sizeof count) < 0 && errno != EAGAIN) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *list = PyList_New(0);
    while (list != NULL && pump_take_back(&self->pump, &news)) {
        if (append(list, news.key, end_of(news)) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyMethodDef methods[] = {
    {"attach", (PyCFunction)Pump_attach, METH_VARARGS,
     "attach(server, client, (prefix, suffix, before reason, after reason, drops usage), last_s) -> key. Relays from one socket to the other from now on. OSError."},
    {"detach", (PyCFunction)Pump_detach, METH_O,
     "detach(key) -> (gaps, last_s, unsent, answered, unread). Returns when both sockets are no longer used. KeyError."},
    {"progress", (PyCFunction)Pump_progress, METH_NOARGS,
     "progress() -> [(key, (gaps, last_s))] of the streams that had tokens since; gaps are floats in ms."},
    {"take_back", (PyCFunction)Pump_take_back, METH_NOARGS,
     "take_back() -> [(key, (gaps, last_s, unsent, answered, unread))] of the streams that were given back."},
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
