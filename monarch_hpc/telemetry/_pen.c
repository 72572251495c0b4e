/* Writes the records of calls and metrics: byte for byte the same as telemetry/pen.py, in a quarter of the time.
 *
 * Uses the stable ABI. All callers hold the interpreter's lock, so there is one writer at a time; another process
 * may read at any time, and this one may be killed at any time. See telemetry/layout.py for the records.
 */

#include <Python.h>
#include <structmember.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are little-endian; telemetry/pen.py writes them on other machines"
#endif

enum { SENT = 1, HANDLED = 2, METRIC = 13, FAILED = 1, OPEN = -1, NUM_BUCKETS = 32, BUCKET_BITS = 8 };

static const uint64_t NUMBER = UINT64_MAX >> 1;
static const int64_t NO_STEP = INT64_MIN;

typedef struct {
    uint64_t t;
    uint16_t kind, flags;
    uint32_t actor, name, peer;
    uint64_t msg, bytes;
    int64_t dur;
    uint64_t value, seq;
} Record;

_Static_assert(sizeof(Record) == 64, "as in telemetry/layout.py");

typedef struct {
    uint64_t num, failed, total, longest, queued_total, queued_longest;
    uint64_t ran[NUM_BUCKETS], queued[NUM_BUCKETS];
} Counter;

_Static_assert(sizeof(Counter) == 560, "as in telemetry/layout.py");

typedef struct {
    PyObject_HEAD
    Py_buffer memory;
    Record *sent, *events, *running, *metrics;
    Counter *counters;
    uint64_t num_sent, num_events, num_running, num_metrics, num_counters;
    uint64_t *cursor, *metrics_cursor; /* numbers of the latest event and metric, in the memory */
    PyObject *keep, *forget, *metric_names, *tags;
} Pen;

typedef struct {
    PyObject_HEAD
    Pen *pen;
    Record *slot; /* the overflow slot is shared, so a slot is never read back */
    unsigned long long place;
    Record call;
    uint64_t queued; /* nanoseconds */
} Handling;

static PyTypeObject *pen_type;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t half(uint64_t number)
{
    return number < UINT32_MAX ? number : UINT32_MAX;
}

static unsigned bucket_of(uint64_t ns)
{
    uint64_t rest = ns >> BUCKET_BITS;
    unsigned bits = rest == 0 ? 0 : 64 - (unsigned)__builtin_clzll(rest);
    return bits < NUM_BUCKETS ? bits : NUM_BUCKETS - 1;
}

/* The compiler must not reorder the stores: the process may be killed between any two. */
static void put(Record *to, const Record *from)
{
    __atomic_store_n(&to->seq, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(to, from, offsetof(Record, seq));
    __atomic_store_n(&to->seq, from->seq, __ATOMIC_RELEASE);
}

static void put_event(Pen *pen, Record *record)
{
    record->seq = ++*pen->cursor;
    put(&pen->events[record->seq & (pen->num_events - 1)], record);
}

static int check_num(Py_ssize_t num, Py_ssize_t wanted)
{
    if (num != wanted) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", wanted, num);
        return -1;
    }
    return 0;
}

static int numbers(PyObject *const *args, Py_ssize_t num, Py_ssize_t wanted, uint64_t *into)
{
    if (check_num(num, wanted) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < num; i++) {
        into[i] = PyLong_AsUnsignedLongLong(args[i]);
        if (into[i] == (uint64_t)-1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* ---- Pen ---- */

static int pen_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Pen *pen = (Pen *)object;
    PyObject *memory, *keep, *forget, *metric_names, *tags;
    unsigned long long at[10], cursor_at[2];
    (void)kwargs;
    if (pen->memory.buf != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the pen is already initialized");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O(KK)(KKK)(KK)(KK)(KKK)OOO!O!", &memory, &at[0], &at[1], &at[2], &at[3], &cursor_at[0],
                          &at[4], &at[5], &at[6], &at[7], &at[8], &at[9], &cursor_at[1], &keep, &forget, &PyDict_Type,
                          &metric_names, &PyDict_Type, &tags))
        return -1;
    if (PyObject_GetBuffer(memory, &pen->memory, PyBUF_WRITABLE) < 0)
        return -1;
    const size_t sizes[5] = {sizeof(Record), sizeof(Record), sizeof(Record), sizeof(Counter), sizeof(Record)};
    for (int i = 0; i < 5; i++) {
        uint64_t length = (uint64_t)pen->memory.len;
        if (at[2 * i] % 8 || at[2 * i] > length || at[2 * i + 1] == 0 ||
            at[2 * i + 1] > (length - at[2 * i]) / sizes[i]) {
            PyErr_SetString(PyExc_ValueError, "a table is outside the bounds of the memory");
            return -1;
        }
    }
    for (int i = 0; i < 2; i++)
        if (cursor_at[i] % 8 || pen->memory.len < 8 || cursor_at[i] > (uint64_t)pen->memory.len - 8) {
            PyErr_SetString(PyExc_ValueError, "a cursor is outside the bounds of the memory");
            return -1;
        }
    char *start = pen->memory.buf;
    pen->cursor = (uint64_t *)(start + cursor_at[0]);
    pen->metrics_cursor = (uint64_t *)(start + cursor_at[1]);
    pen->sent = (Record *)(start + at[0]), pen->num_sent = at[1];
    pen->events = (Record *)(start + at[2]), pen->num_events = at[3];
    pen->running = (Record *)(start + at[4]), pen->num_running = at[5];
    pen->counters = (Counter *)(start + at[6]), pen->num_counters = at[7];
    pen->metrics = (Record *)(start + at[8]), pen->num_metrics = at[9];
    pen->keep = Py_NewRef(keep);
    pen->forget = Py_NewRef(forget);
    pen->metric_names = Py_NewRef(metric_names);
    pen->tags = Py_NewRef(tags);
    return 0;
}

static int pen_traverse(PyObject *object, visitproc visit, void *arg)
{
    Pen *pen = (Pen *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(pen->keep);
    Py_VISIT(pen->forget);
    Py_VISIT(pen->metric_names);
    Py_VISIT(pen->tags);
    return 0;
}

static int pen_clear(PyObject *object)
{
    Pen *pen = (Pen *)object;
    Py_CLEAR(pen->keep);
    Py_CLEAR(pen->forget);
    Py_CLEAR(pen->metric_names);
    Py_CLEAR(pen->tags);
    return 0;
}

static void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static void pen_dealloc(PyObject *object)
{
    Pen *pen = (Pen *)object;
    PyObject_GC_UnTrack(object);
    pen_clear(object);
    if (pen->memory.buf != NULL)
        PyBuffer_Release(&pen->memory);
    free_object(object);
}

static PyObject *pen_event(PyObject *object, PyObject *unused)
{
    Pen *pen = (Pen *)object;
    (void)unused;
    if (pen->cursor == NULL)
        return PyLong_FromLong(0);
    return PyLong_FromUnsignedLongLong(++*pen->cursor);
}

static PyObject *pen_sent(PyObject *object, PyObject *const *args, Py_ssize_t num)
{
    Pen *pen = (Pen *)object;
    uint64_t a[6];
    if (numbers(args, num, 6, a) < 0)
        return NULL;
    a[0] &= NUMBER;
    Record record = {
        .kind = SENT, .actor = (uint32_t)a[1], .name = (uint32_t)a[2], .peer = (uint32_t)a[3], .msg = a[0],
        .bytes = a[4], .value = a[5],
    };
    if (a[0] == 0) {
        record.t = now();
        put_event(pen, &record);
        Py_RETURN_NONE;
    }
    uint64_t place = a[0] & (pen->num_sent - 1);
    if (pen->sent[place].dur == OPEN && pen->keep != NULL) {
        PyObject *done = PyObject_CallFunction(pen->keep, "K", (unsigned long long)place);
        if (done == NULL)
            return NULL;
        Py_DECREF(done);
    }
    record.t = now();
    record.dur = OPEN;
    record.seq = a[0];
    put(&pen->sent[place], &record);
    Py_RETURN_NONE;
}

static PyObject *close_call(PyObject *object, PyObject *number, uint16_t flags)
{
    Pen *pen = (Pen *)object;
    uint64_t msg = PyLong_AsUnsignedLongLong(number);
    if (msg == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    msg &= NUMBER;
    Record *record = &pen->sent[msg & (pen->num_sent - 1)];
    if (record->seq == msg) {
        record->flags = flags;
        __atomic_store_n(&record->dur, (int64_t)(now() - record->t), __ATOMIC_RELAXED);
    } else if (pen->forget != NULL)
        return PyObject_CallFunction(pen->forget, "K", (unsigned long long)msg);
    Py_RETURN_NONE;
}

static PyObject *pen_answered(PyObject *object, PyObject *number)
{
    return close_call(object, number, 0);
}

static PyObject *pen_failed(PyObject *object, PyObject *number)
{
    return close_call(object, number, FAILED);
}

/* *labels* are the mark of the actor, and numbers of name and tags. */
static void put_metric(Pen *pen, const uint64_t *labels, int64_t step, double value)
{
    if (pen->metrics_cursor == NULL)
        return;
    Record record = {
        .t = now(), .kind = METRIC, .actor = (uint32_t)labels[0], .name = (uint32_t)labels[1],
        .peer = (uint32_t)labels[2], .dur = step, .seq = ++*pen->metrics_cursor,
    };
    memcpy(&record.value, &value, sizeof value);
    put(&pen->metrics[record.seq & (pen->num_metrics - 1)], &record);
}

/* Mark, numbers of name and tags, step and value. */
static PyObject *pen_metric(PyObject *object, PyObject *const *args, Py_ssize_t num)
{
    Pen *pen = (Pen *)object;
    uint64_t a[3];
    if (check_num(num, 5) < 0 || numbers(args, 3, 3, a) < 0)
        return NULL;
    int64_t step = PyLong_AsLongLong(args[3]);
    if (step == -1 && PyErr_Occurred())
        return NULL;
    double value = PyFloat_AsDouble(args[4]);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    put_metric(pen, a, step, value);
    Py_RETURN_NONE;
}

/* The key of tags in the dict of their numbers: as `names.key_of`. */
static PyObject *key_of(PyObject *tags)
{
    Py_ssize_t num = PyDict_Size(tags), at = 0, place = 0;
    PyObject *tag, *value;
    if (num == 1 && PyDict_Next(tags, &at, &tag, &value))
        return PyTuple_Pack(3, tag, value, (PyObject *)Py_TYPE(value));
    PyObject *key = PyTuple_New(2 * num);
    while (key != NULL && PyDict_Next(tags, &at, &tag, &value) && place < num) {
        PyObject *item = PyTuple_Pack(2, tag, value);
        if (item == NULL) {
            Py_CLEAR(key);
            break;
        }
        PyTuple_SetItem(key, place, item);
        PyTuple_SetItem(key, num + place, Py_NewRef((PyObject *)Py_TYPE(value)));
        place++;
    }
    return key;
}

/* The number of *key* in one of the dicts; 0 if it has none, or there is an error. */
static uint64_t number_of(PyObject *numbers_by_key, PyObject *key)
{
    PyObject *number = PyDict_GetItemWithError(numbers_by_key, key);
    return number == NULL ? 0 : PyLong_AsUnsignedLongLong(number);
}

/* Leave what is wrong with an argument to the caller, whose errors say more; other errors are raised. */
static PyObject *refuse(void)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError) &&
        !PyErr_ExceptionMatches(PyExc_OverflowError))
        return NULL;
    PyErr_Clear();
    Py_RETURN_FALSE;
}

/* Mark, name, dict of tags, step or None, and value. */
static PyObject *pen_known_metric(PyObject *object, PyObject *const *args, Py_ssize_t num)
{
    Pen *pen = (Pen *)object;
    uint64_t a[3] = {0, 0, 0};
    int64_t step = NO_STEP;
    if (check_num(num, 5) < 0 || numbers(args, 1, 1, a) < 0)
        return NULL;
    if (pen->metric_names == NULL || !PyUnicode_CheckExact(args[1]) || !PyDict_CheckExact(args[2]))
        Py_RETURN_FALSE;
    a[1] = number_of(pen->metric_names, args[1]);
    if (a[1] == 0 || PyErr_Occurred())
        return refuse();
    if (PyDict_Size(args[2]) > 0) {
        PyObject *key = key_of(args[2]);
        if (key == NULL)
            return NULL;
        a[2] = number_of(pen->tags, key);
        Py_DECREF(key);
        if (a[2] == 0 || PyErr_Occurred())
            return refuse();
    }
    if (args[3] != Py_None) {
        if (!PyLong_CheckExact(args[3]))
            Py_RETURN_FALSE;
        step = PyLong_AsLongLong(args[3]);
        if (step == NO_STEP || (step == -1 && PyErr_Occurred()))
            return refuse();
    }
    double value = PyFloat_AsDouble(args[4]);
    if (value == -1 && PyErr_Occurred())
        return refuse();
    put_metric(pen, a, step, value);
    Py_RETURN_TRUE;
}

static PyMethodDef pen_methods[] = {
    {"event", pen_event, METH_NOARGS, NULL},
    {"sent", (PyCFunction)(void (*)(void))pen_sent, METH_FASTCALL, NULL},
    {"answered", pen_answered, METH_O, NULL},
    {"failed", pen_failed, METH_O, NULL},
    {"metric", (PyCFunction)(void (*)(void))pen_metric, METH_FASTCALL, NULL},
    {"known_metric", (PyCFunction)(void (*)(void))pen_known_metric, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pen_slots[] = {
    {Py_tp_init, pen_init},
    {Py_tp_traverse, pen_traverse},
    {Py_tp_clear, pen_clear},
    {Py_tp_dealloc, pen_dealloc},
    {Py_tp_methods, pen_methods},
    {0, NULL},
};

static PyType_Spec pen_spec = {
    "monarch_hpc.telemetry._pen.Pen", sizeof(Pen), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, pen_slots,
};

/* ---- Handling ---- */

static int handling_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Handling *handling = (Handling *)object;
    PyObject *pen;
    unsigned long long place, mark;
    (void)kwargs;
    if (handling->pen != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the handling is already initialized");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O!KK", pen_type, &pen, &place, &mark))
        return -1;
    if (place >= ((Pen *)pen)->num_running) {
        PyErr_SetString(PyExc_ValueError, "the place is out of range");
        return -1;
    }
    handling->pen = (Pen *)Py_NewRef(pen);
    handling->slot = &handling->pen->running[place];
    handling->place = place;
    handling->call.kind = HANDLED;
    handling->call.dur = OPEN;
    handling->call.actor = (uint32_t)mark;
    return 0;
}

static int handling_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Handling *)object)->pen);
    return 0;
}

static int handling_clear(PyObject *object)
{
    Py_CLEAR(((Handling *)object)->pen);
    return 0;
}

static void handling_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    handling_clear(object);
    free_object(object);
}

static PyObject *handling_begin(PyObject *object, PyObject *const *args, Py_ssize_t num)
{
    Handling *handling = (Handling *)object;
    uint64_t a[5];
    if (numbers(args, num, 5, a) < 0)
        return NULL;
    if (handling->pen == NULL)
        Py_RETURN_NONE;
    Record *call = &handling->call;
    call->t = now();
    call->name = (uint32_t)a[0];
    call->peer = (uint32_t)a[1];
    call->msg = a[2] & NUMBER;
    call->bytes = a[3];
    handling->queued = call->t > a[4] ? call->t - a[4] : 0;
    call->value = half(handling->queued / 1000);
    call->seq = 1;
    put(handling->slot, call);
    Py_RETURN_NONE;
}

/* *answer* is the size of the answer, or the number of the name of the exception. */
static PyObject *finish(Handling *handling, uint16_t flags, PyObject *answer)
{
    Pen *pen = handling->pen;
    uint64_t size = PyLong_AsUnsignedLongLong(answer);
    if (size == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    if (pen == NULL || handling->call.seq == 0)
        Py_RETURN_NONE;
    Record record = handling->call;
    handling->call.seq = 0;
    record.flags = flags;
    record.dur = (int64_t)(now() - record.t);
    record.value |= half(size) << 32;
    put_event(pen, &record);
    __atomic_store_n(&handling->slot->seq, 0, __ATOMIC_RELEASE);
    if (record.name < pen->num_counters) {
        Counter *counter = &pen->counters[record.name];
        counter->num++;
        counter->failed += flags & FAILED;
        counter->total += (uint64_t)record.dur;
        if ((uint64_t)record.dur > counter->longest)
            counter->longest = (uint64_t)record.dur;
        counter->queued_total += handling->queued;
        if (handling->queued > counter->queued_longest)
            counter->queued_longest = handling->queued;
        counter->ran[bucket_of((uint64_t)record.dur)]++;
        counter->queued[bucket_of(handling->queued)]++;
    }
    Py_RETURN_NONE;
}

static PyObject *handling_end(PyObject *object, PyObject *answer_bytes)
{
    return finish((Handling *)object, 0, answer_bytes);
}

static PyObject *handling_fail(PyObject *object, PyObject *name)
{
    return finish((Handling *)object, FAILED, name);
}

static PyMethodDef handling_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))handling_begin, METH_FASTCALL, NULL},
    {"end", handling_end, METH_O, NULL},
    {"fail", handling_fail, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef handling_members[] = {
    {"place", T_ULONGLONG, offsetof(Handling, place), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot handling_slots[] = {
    {Py_tp_members, handling_members},
    {Py_tp_init, handling_init},
    {Py_tp_traverse, handling_traverse},
    {Py_tp_clear, handling_clear},
    {Py_tp_dealloc, handling_dealloc},
    {Py_tp_methods, handling_methods},
    {0, NULL},
};

static PyType_Spec handling_spec = {
    "monarch_hpc.telemetry._pen.Handling", sizeof(Handling), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, handling_slots,
};

/* ---- the module ---- */

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **into)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL)
        return -1;
    if (into != NULL)
        *into = (PyTypeObject *)Py_NewRef(type);
    int outcome = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return outcome;
}

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "_pen", "The compiled pen of monarch_hpc.telemetry.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__pen(void)
{
    PyObject *module = PyModule_Create(&module_def);
    if (module == NULL)
        return NULL;
    if (add_type(module, &pen_spec, &pen_type) < 0 || add_type(module, &handling_spec, NULL) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
