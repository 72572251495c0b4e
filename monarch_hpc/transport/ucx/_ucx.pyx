# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Binding to libucp: active messages, one-sided get and put, and the thread that progresses them.

About ten calls wide on purpose, so that another library (libfabric) could offer the same interface. core.h has the
parts that run without the GIL; the decisions (order, trust, choice of peer) are in `transport.ucx.lane`.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF

import math
import os

cdef extern from "unistd.h" nogil:
    int usleep(unsigned)

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data data

cdef extern from "environ.h":
    ctypedef struct mc_environ:
        pass
    int mc_environ_put(mc_environ *, char *const *, size_t)
    void mc_environ_take(mc_environ *)


cdef extern from "core.h" nogil:
    ctypedef signed char mh_status_t
    ctypedef void *mh_status_ptr_t
    ctypedef void *mh_context_h
    ctypedef void *mh_worker_h
    ctypedef void *mh_ep_h
    ctypedef void *mh_mem_h
    ctypedef void *mh_rkey_h
    ctypedef void mh_address_t
    ctypedef struct mh_config_t:
        pass
    enum:
        MH_OK, MH_ERR_NO_MEMORY, MH_ERR_NOT_CONNECTED, MH_API_MAJOR, MH_API_MINOR, MH_THREAD_MODE_MULTI
        MH_FEATURE_AM, MH_FEATURE_RMA, MH_FEATURE_WAKEUP, MH_PARAM_FIELD_FEATURES
        MH_PARAM_FIELD_MT_WORKERS_SHARED, MH_MEM_MAP_PARAM_FIELD_PROT, MH_MEM_MAP_PROT_LOCAL_READ
        MH_MEM_MAP_PROT_LOCAL_WRITE, MH_MEM_MAP_PROT_REMOTE_READ, MH_MEM_MAP_PROT_REMOTE_WRITE
        MH_WORKER_PARAM_FIELD_THREAD_MODE, MH_WORKER_ATTR_FIELD_THREAD_MODE
        MH_AM_HANDLER_PARAM_FIELD_ID, MH_AM_HANDLER_PARAM_FIELD_CB, MH_AM_HANDLER_PARAM_FIELD_ARG
        MH_AM_HANDLER_PARAM_FIELD_FLAGS, MH_AM_FLAG_WHOLE_MSG
        MH_EP_PARAM_FIELD_REMOTE_ADDRESS, MH_EP_PARAM_FIELD_ERR_HANDLING_MODE, MH_EP_PARAM_FIELD_ERR_HANDLER
        MH_ERR_HANDLING_MODE_PEER, MH_EP_CLOSE_FLAG_FORCE, MH_EP_ATTR_FIELD_TRANSPORTS
        MH_OP_ATTR_FIELD_CALLBACK, MH_OP_ATTR_FIELD_USER_DATA, MH_OP_ATTR_FIELD_FLAGS
        MH_OP_ATTR_FIELD_MEMORY_TYPE, MH_OP_ATTR_FIELD_DATATYPE
        MH_MEM_MAP_PARAM_FIELD_ADDRESS, MH_MEM_MAP_PARAM_FIELD_LENGTH, MH_MEM_MAP_PARAM_FIELD_MEMORY_TYPE
        MH_MEMORY_TYPE_HOST, MH_MEMORY_TYPE_CUDA
    ctypedef struct mh_params_t:
        uint64_t field_mask
        uint64_t features
        int mt_workers_shared
    ctypedef struct mh_worker_params_t:
        uint64_t field_mask
        unsigned thread_mode
    ctypedef struct mh_worker_attr_t:
        uint64_t field_mask
        unsigned thread_mode
    ctypedef struct mh_am_handler_param_t:
        uint64_t field_mask
        unsigned id
        uint32_t flags
        void *cb
        void *arg
    ctypedef struct mh_err_handler_t:
        void *cb
        void *arg
    ctypedef struct mh_ep_params_t:
        uint64_t field_mask
        const mh_address_t *address
        unsigned err_mode
        mh_err_handler_t err_handler
    ctypedef struct mh_transport_entry_t:
        const char *transport_name
        const char *device_name
    ctypedef struct mh_transports_t:
        mh_transport_entry_t *entries
        unsigned num_entries
        size_t entry_size
    ctypedef struct mh_ep_attr_t:
        uint64_t field_mask
        mh_transports_t transports
    ctypedef union mh_callback:
        void *send
        void *recv_am
    ctypedef struct mh_request_param_t:
        uint32_t op_attr_mask
        uint32_t flags
        mh_callback cb
        uint64_t datatype
        void *user_data
        unsigned memory_type
    ctypedef struct mh_mem_map_params_t:
        uint64_t field_mask
        void *address
        size_t length
        unsigned prot
        unsigned memory_type
    bint MH_PTR_IS_ERR(void *)
    mh_status_t MH_PTR_STATUS(void *)
    ctypedef struct mh_library_t:
        mh_status_t (*config_read)(const char *, const char *, mh_config_t **) noexcept nogil
        void (*config_release)(mh_config_t *) noexcept nogil
        mh_status_t (*init_version)(unsigned, unsigned, mh_params_t *, mh_config_t *, mh_context_h *) noexcept nogil
        void (*cleanup)(mh_context_h) noexcept nogil
        mh_status_t (*worker_create)(mh_context_h, mh_worker_params_t *, mh_worker_h *) noexcept nogil
        void (*worker_destroy)(mh_worker_h) noexcept nogil
        mh_status_t (*worker_query)(mh_worker_h, mh_worker_attr_t *) noexcept nogil
        mh_status_t (*worker_get_address)(mh_worker_h, mh_address_t **, size_t *) noexcept nogil
        void (*worker_release_address)(mh_worker_h, mh_address_t *) noexcept nogil
        mh_status_t (*worker_get_efd)(mh_worker_h, int *) noexcept nogil
        unsigned (*worker_progress)(mh_worker_h) noexcept nogil
        mh_status_t (*worker_set_am_recv_handler)(mh_worker_h, mh_am_handler_param_t *) noexcept nogil
        mh_status_t (*ep_create)(mh_worker_h, mh_ep_params_t *, mh_ep_h *) noexcept nogil
        void *(*ep_close_nbx)(mh_ep_h, mh_request_param_t *) noexcept nogil
        void *(*ep_flush_nbx)(mh_ep_h, mh_request_param_t *) noexcept nogil
        mh_status_t (*ep_query)(mh_ep_h, mh_ep_attr_t *) noexcept nogil
        void *(*am_recv_data_nbx)(mh_worker_h, void *, void *, size_t, mh_request_param_t *) noexcept nogil
        void (*am_data_release)(mh_worker_h, void *) noexcept nogil
        mh_status_t (*mem_map)(mh_context_h, mh_mem_map_params_t *, mh_mem_h *) noexcept nogil
        mh_status_t (*mem_unmap)(mh_context_h, mh_mem_h) noexcept nogil
        mh_status_t (*rkey_pack)(mh_context_h, mh_mem_h, void **, size_t *) noexcept nogil
        void (*rkey_buffer_release)(void *) noexcept nogil
        mh_status_t (*ep_rkey_unpack)(mh_ep_h, const void *, mh_rkey_h *) noexcept nogil
        void (*rkey_destroy)(mh_rkey_h) noexcept nogil
        void *(*put_nbx)(mh_ep_h, const void *, size_t, uint64_t, mh_rkey_h, mh_request_param_t *) noexcept nogil
        void *(*get_nbx)(mh_ep_h, void *, size_t, uint64_t, mh_rkey_h, mh_request_param_t *) noexcept nogil
    mh_library_t mh_ucp
    int mh_library_load(const char *)
    const char *mh_library_error()
    const char *mh_library_path()
    const char *mh_library_version()
    const char *mh_status_text(mh_status_t)

    enum:
        MC_HEADER_BYTES, MC_TOKEN_BYTES, MC_BATCH_BYTES, MC_LANES_MAX, MC_AM_SMALL, MC_AM_BULK
        MC_EVENT_SMALL, MC_EVENT_BULK, MC_EVENT_DONE, MC_EVENT_ERROR, MC_EVENT_ROOM, MC_EVENT_WIRED
        MC_CLOSE_NS, MC_REAP_NS, MC_ABANDONED_MAX, MC_NO_BATCH
    ctypedef struct mc_event:
        mc_event *next
        int kind
        int status
        uint32_t lane
        uint32_t life
        uint64_t sequence
        void *data
        size_t num_bytes
        int rendezvous
        char *bytes
    ctypedef struct mc_lane:
        mh_ep_h endpoint
        uint32_t index
        uint32_t life
        unsigned char *own_token
        unsigned char *peer_token
        int over_sockets
    ctypedef struct mc_worker:
        mh_context_h context
        mh_worker_h ucp
        int event_fd
        uint32_t num_lanes
    ctypedef struct mc_operation:
        mc_worker *worker
        void *owner
        size_t num_bytes
    ctypedef struct mc_piece:
        void *local
        size_t num_bytes
        uint64_t address
        mh_rkey_h key
        int put
    ctypedef struct mc_mapping:
        void *address
        size_t num_bytes
    mc_mapping mc_map(size_t)
    void mc_unmap(mc_mapping)
    ctypedef struct mc_target:
        size_t num_bytes
    uint64_t mc_target_type
    int mc_target_prepare()
    void mc_target_init(mc_target *, size_t)
    void mc_target_set(mc_target *, void *)
    void mc_target_withdraw(mc_target *)
    void mc_target_destroy(mc_target *)
    mh_status_t mc_target_unpack(void *, size_t, const void *, size_t)
    int MC_FORKED, MC_CLOSED
    int mc_poisoned
    mc_worker *mc_worker_new()
    int mc_lost(mc_worker *)
    int mc_thread_start(mc_worker *)
    void mc_thread_stop(mc_worker *)
    int mc_worker_busy(mc_worker *)
    int mc_worker_drain(mc_worker *, uint64_t)
    void mc_worker_destroy(mc_worker *)
    void mc_worker_free(mc_worker *)
    void mc_take(mc_worker *)
    mc_event *mc_pop(mc_worker *)
    void mc_give_back(mc_worker *, mc_event *)
    void mc_dispose(mc_worker *, mc_event *)
    mc_lane *mc_lane_open(mc_worker *, const unsigned char *random)
    void mc_lane_close(mc_lane *)
    void mc_lane_failed(mc_lane *, int)
    void mc_lane_wire(mc_lane *)
    void mc_begin(mc_operation *)
    void mc_refused(mc_operation *)
    size_t mc_lane_pending_bytes(mc_lane *)
    int mc_lane_has_room(mc_lane *, size_t)
    int mc_send_small(mc_lane *, const void *, size_t, const void *, size_t, int)
    int mc_started(void *, mc_operation *)
    uint64_t mc_reserve(mc_lane *, unsigned, int *)
    int mc_send_bulk(mc_lane *, uint32_t, unsigned char *, const void *, size_t, uint64_t, mc_operation *)
    int mc_move(mc_lane *, uint32_t, int, void *, size_t, uint64_t, mh_rkey_h, const mh_request_param_t *, mc_operation *)
    void mc_move_all(mc_lane *, uint32_t, const mc_piece *, size_t, const mh_request_param_t *, mc_operation *)
    int mc_flush(mc_lane *, uint32_t, const mh_request_param_t *, mc_operation *)
    void mc_use_gpu(void *, void *, void *, void *)
    int mc_gpu_enter()
    void mc_gpu_leave(int)
    int mc_worker_poll(mc_worker *, int, epoll_event *, int, int64_t, int64_t)
    void mc_watch(mc_worker *)
    void mc_wait_away(mc_worker *)
    uint64_t mc_num_refused(mc_worker *)
    uint64_t mc_num_thread_wakes(mc_worker *)
    void *mc_callback_small()
    void *mc_callback_bulk()
    void *mc_callback_error()
    void *mc_callback_sent()
    void *mc_callback_piece()
    void *mc_callback_received()

SMALL = MC_EVENT_SMALL
BULK = MC_EVENT_BULK
DONE = MC_EVENT_DONE
ERROR = MC_EVENT_ERROR
ROOM = MC_EVENT_ROOM
WIRED = MC_EVENT_WIRED
RECORD_BYTES = MC_BATCH_BYTES
TOKEN_BYTES = MC_TOKEN_BYTES
CONTAINER_SHIFT = 62  # the upper bits of a separate message's sequence number are its container
ABANDONED_MAX = MC_ABANDONED_MAX

cdef enum:
    EVENTS_MAX = 256
cdef uint64_t _SEQUENCE_MASK = (<uint64_t>1 << 62) - 1


class UcxError(Exception):
    """A failed call of UCX: a status below 0, and the operation."""

    def __init__(self, what, status):
        super().__init__(what, status)
        self.what = what
        self.status = status

    def __str__(self):
        return f"{self.what}: {status_text(self.status)}"


def status_text(int status):
    """Return UCX's text for a status."""
    return mh_status_text(<mh_status_t>status).decode(errors="replace")


def load(path):
    """Load libucp from *path* for the life of the process; return its path and version.

    Raises:
        OSError: it cannot be loaded, or lacks a function.
    """
    cdef bytes name = os.fsencode(path)
    cdef const char *text = name
    cdef int failed
    with nogil:  # a wheel with CUDA inside takes half a second
        failed = mh_library_load(text)
    if failed:
        raise OSError(mh_library_error().decode(errors="replace"))
    return os.fsdecode(mh_library_path()), mh_library_version().decode()


def _poison():
    global mc_poisoned
    mc_poisoned = MC_FORKED


os.register_at_fork(after_in_child=_poison)


cdef class Environment:
    """Variables that libucp reads while it starts, for the time of a ``with`` statement; a mapping of strings.

    They are in the environment of C only, beside what is there: `os.environ` does not show them.
    """

    cdef mc_environ saved
    cdef list entries

    def __init__(self, variables):
        self.entries = [os.fsencode(f"{name}={value}") for name, value in variables.items()]

    def __enter__(self):
        cdef size_t num = len(self.entries)
        cdef char **entries = <char **>calloc(num + 1, sizeof(char *))
        cdef bint fits = entries != NULL
        if fits:
            for place in range(num):
                entries[place] = <bytes>self.entries[place]
            fits = mc_environ_put(&self.saved, entries, num)
        free(entries)
        if not fits:
            raise MemoryError("no memory for the environment of UCX")

    def __exit__(self, *_):
        mc_environ_take(&self.saved)


cdef int _check(int status, what) except -1:
    if status != MH_OK:
        raise UcxError(what, status)
    return 0


def use_gpu(uintptr_t context, uintptr_t get_current, uintptr_t push_current, uintptr_t pop_current):
    """Give UCX's threads *context* of a GPU while they have none; the others are functions of its driver, by address."""
    mc_use_gpu(<void *>context, <void *>get_current, <void *>push_current, <void *>pop_current)


cdef int _alive(mc_worker *worker) except -1:
    if mc_poisoned == MC_CLOSED:
        raise UcxError("UCX, whose descriptors the program has closed", -24)
    if mc_poisoned:
        raise RuntimeError("this process was forked from one that uses UCX, which does not survive a fork; start it with exec")
    if worker == NULL:  # a thread that sends may come to this after another one has closed it
        raise UcxError("a closed UCX worker", -24)
    return 0


cdef class Landing:
    """Memory for one arriving message, aligned for any array; writable through the buffer protocol."""

    cdef mc_mapping mapping
    cdef size_t num_bytes

    def __cinit__(self, size_t num_bytes):
        self.num_bytes = num_bytes
        self.mapping = mc_map(num_bytes)
        if self.mapping.address == NULL:
            raise MemoryError(f"no memory for a message of {num_bytes} bytes")

    def __len__(self):
        return self.num_bytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.mapping.address, self.num_bytes, 0, flags)

    def __dealloc__(self):
        if self.mapping.address != NULL:
            mc_unmap(self.mapping)


cdef class Span:
    """A span of host or device memory; it keeps the memory's owner alive.

    Args:
        target: an object with the buffer protocol or ``__cuda_array_interface__``; contiguous.
    """

    cdef Py_buffer view
    cdef bint held
    cdef object target
    cdef readonly unsigned long long address
    cdef readonly unsigned long long num_bytes
    cdef readonly bint device

    def __cinit__(self, target, bint writable):
        self.target = target
        interface = None
        if not isinstance(target, (bytes, bytearray, memoryview)):
            interface = getattr(target, "__cuda_array_interface__", None)
        if interface is not None:
            expected = int(interface["typestr"][2:])
            for size, stride in zip(reversed(interface["shape"]), reversed(interface.get("strides") or ())):
                if size > 1 and stride != expected:
                    raise BufferError("the device array is not contiguous")
                expected *= size
            if writable and interface["data"][1]:
                raise BufferError("the device array is read-only")
            self.address = interface["data"][0]
            self.num_bytes = math.prod(interface["shape"]) * int(interface["typestr"][2:])
            self.device = True
            return
        PyObject_GetBuffer(target, &self.view, PyBUF_WRITABLE | PyBUF_ANY_CONTIGUOUS if writable else PyBUF_ANY_CONTIGUOUS)
        self.held = True
        self.address = <uintptr_t>self.view.buf
        self.num_bytes = self.view.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class Target:
    """Memory in which a message of *num_bytes* arrives, and which can be taken back while it does.

    Any thread may call its methods.
    """

    cdef mc_target target
    cdef Span span

    def __cinit__(self, size_t num_bytes):
        mc_target_init(&self.target, num_bytes)

    def set(self, view):
        """Give it *view*, as its memory; in vain if it was withdrawn before."""
        cdef Span span = Span(view, True)
        if span.num_bytes != self.target.num_bytes:
            raise ValueError(f"{span.num_bytes} bytes of memory for a message of {self.target.num_bytes}")
        self.span = span
        mc_target_set(&self.target, <void *><uintptr_t>span.address)

    def withdraw(self):
        """Return once nothing writes to the memory any more; what still arrives is dropped."""
        if not mc_poisoned:  # a thread that held the lock is not in a forked child, and UCX writes nothing there
            with nogil:
                mc_target_withdraw(&self.target)
        self.span = None

    def __dealloc__(self):
        mc_target_destroy(&self.target)


cdef class Operation:
    """An asynchronous operation of UCX; it keeps the memory that UCX accesses alive until it is done.

    Attributes:
        status: 0 when done, below 0 when failed, 1 while in flight.
        on_done: called by the user of `Worker.take` on a DONE event; free for the owner.
    """

    cdef mc_operation operation
    cdef unsigned char header[32]
    cdef object kept
    cdef readonly int status
    cdef public object on_done

    def __cinit__(self):
        self.status = 1



cdef void _parameters(mh_request_param_t *param, Operation operation, void *callback):
    memset(param, 0, sizeof(mh_request_param_t))
    param.op_attr_mask = MH_OP_ATTR_FIELD_CALLBACK | MH_OP_ATTR_FIELD_USER_DATA
    param.cb.send = callback
    param.user_data = &operation.operation


cdef Operation _begin(Worker worker, kept):
    cdef Operation operation = Operation.__new__(Operation)
    # Now: making an object may run the garbage collector, and with it any code, and other threads.
    _alive(worker.worker)
    operation.operation.worker = worker.worker
    operation.operation.owner = <void *>operation
    operation.kept = kept
    mc_begin(&operation.operation)
    Py_INCREF(operation)  # UCX's reference, until the DONE event
    return operation


cdef int _started(int status, Operation operation, what) except -1:
    """Release the operation and raise, if UCX refused it."""
    if status != MH_OK:
        mc_refused(&operation.operation)
        Py_DECREF(operation)
        operation.kept = None
        operation.status = status
        raise UcxError(what, status)
    return 0


cdef class Worker:
    """One UCX context and worker, and the thread that progresses it while Python does not.

    UCX reads its settings from the environment in the constructor, see `transport.ucx.settings`.

    Args:
        max_bytes: larger messages are refused before memory is allocated for them.
        place: called with the length of a separate message and its container, see `wire.frames`; returns what its
            receiver gets and a writable view of it, or raises MemoryError. A lane whose `lands` is set asks its owner
            before: see there.

    Raises:
        UcxError: UCX finds no transport, or no memory.
    """

    cdef mc_worker *worker
    cdef mc_worker *ending  # the same worker, from its close until it is destroyed
    cdef int num_inside  # threads that call UCX with one of its lanes, without the GIL
    cdef list owners
    cdef set memories
    cdef int num_mapped  # the mapped ones; UCX aborts if it is destroyed before them
    cdef size_t max_bytes
    cdef object place
    cdef readonly bytes address
    cdef readonly int fd

    def __cinit__(self, size_t max_bytes, place):
        cdef mh_params_t params
        cdef mh_config_t *config = NULL
        cdef mh_worker_params_t worker_params
        cdef mh_worker_attr_t attributes
        cdef mh_address_t *address
        cdef size_t length
        cdef mh_status_t status
        if not mh_library_version()[0]:
            raise RuntimeError("load() comes first")
        _alive(<mc_worker *>1)
        if _reap() >= MC_ABANDONED_MAX:
            raise RuntimeError(f"{MC_ABANDONED_MAX} closed UCX workers of this process wait for peers that do not answer")
        self.owners = []
        self.memories = set()
        self.max_bytes = max_bytes
        self.place = place
        self.worker = mc_worker_new()
        if self.worker == NULL:
            raise MemoryError
        _check(mc_target_prepare(), "a data type of UCX")
        _check(mh_ucp.config_read(NULL, NULL, &config), "reading UCX's settings")
        memset(&params, 0, sizeof(params))
        # Memory is registered by any thread while the worker's own thread moves it.
        params.field_mask = MH_PARAM_FIELD_FEATURES | MH_PARAM_FIELD_MT_WORKERS_SHARED
        params.mt_workers_shared = 1
        params.features = MH_FEATURE_AM | MH_FEATURE_RMA | MH_FEATURE_WAKEUP
        with nogil:
            status = mh_ucp.init_version(MH_API_MAJOR, MH_API_MINOR, &params, config, &self.worker.context)
        mh_ucp.config_release(config)
        _check(status, "starting UCX")
        memset(&worker_params, 0, sizeof(worker_params))
        worker_params.field_mask = MH_WORKER_PARAM_FIELD_THREAD_MODE
        worker_params.thread_mode = MH_THREAD_MODE_MULTI
        with nogil:
            status = mh_ucp.worker_create(self.worker.context, &worker_params, &self.worker.ucp)
        _check(status, "making a UCX worker")
        memset(&attributes, 0, sizeof(attributes))
        attributes.field_mask = MH_WORKER_ATTR_FIELD_THREAD_MODE
        _check(mh_ucp.worker_query(self.worker.ucp, &attributes), "asking the UCX worker")
        if attributes.thread_mode != MH_THREAD_MODE_MULTI:
            raise RuntimeError("this libucp was built without support for threads")
        _check(mh_ucp.worker_get_efd(self.worker.ucp, &self.worker.event_fd), "UCX's event descriptor")
        self.fd = self.worker.event_fd
        self._handle(MC_AM_SMALL, mc_callback_small())
        self._handle(MC_AM_BULK, mc_callback_bulk())
        _check(mh_ucp.worker_get_address(self.worker.ucp, &address, &length), "the UCX worker's address")
        self.address = PyBytes_FromStringAndSize(<char *>address, length)
        mh_ucp.worker_release_address(self.worker.ucp, address)
        if mc_thread_start(self.worker) != 0:
            raise RuntimeError("cannot start UCX's thread")

    cdef _handle(self, unsigned number, void *callback):
        cdef mh_am_handler_param_t param
        memset(&param, 0, sizeof(param))
        param.field_mask = (MH_AM_HANDLER_PARAM_FIELD_ID | MH_AM_HANDLER_PARAM_FIELD_CB | MH_AM_HANDLER_PARAM_FIELD_ARG |
                            MH_AM_HANDLER_PARAM_FIELD_FLAGS)
        param.id = number
        param.flags = MH_AM_FLAG_WHOLE_MSG
        param.cb = callback
        param.arg = self.worker
        _check(mh_ucp.worker_set_am_recv_handler(self.worker.ucp, &param), "a UCX handler")

    @property
    def num_refused(self):
        """Number of messages dropped because their token was wrong."""
        return 0 if self.worker == NULL else mc_num_refused(self.worker)

    @property
    def num_thread_wakes(self):
        """Number of times that the worker's own thread has woken."""
        return 0 if self.worker == NULL else mc_num_thread_wakes(self.worker)

    def open(self, owner):
        """Return a lane for *owner*; `Lane.connect` connects it to a peer."""
        _alive(self.worker)
        cdef bytes random = os.urandom(MC_TOKEN_BYTES)
        cdef mc_lane *lane = mc_lane_open(self.worker, <const unsigned char *><char *>random)
        if lane == NULL:
            raise RuntimeError(f"no memory for a UCX peer, or more than {MC_LANES_MAX} of them")
        cdef Lane opened
        try:
            while len(self.owners) <= lane.index:
                self.owners.append(None)
            opened = Lane.__new__(Lane)
            opened.worker = self
            opened.life = lane.life
            opened.token = lane.own_token[:MC_TOKEN_BYTES]
            self.owners[lane.index] = (opened, owner)
        except BaseException:
            mc_lane_close(lane)
            raise
        opened.lane = lane
        return opened

    def poll(self, int epoll_fd, double spin_s, double timeout_s):
        """Drive until messages arrive, *epoll_fd* is ready, or the time is over (below 0: never).

        Returns:
            ``(fd, mask)`` of each ready descriptor, except UCX's; then `take` the messages.

        Raises:
            OSError: of epoll_wait; EBADF, too, if the program has closed UCX's descriptors.
        """
        cdef epoll_event events[EVENTS_MAX]
        cdef int count, i
        cdef int64_t spin_ns = <int64_t>(spin_s * 1e9)
        cdef int64_t timeout_ns = -1 if timeout_s < 0 else <int64_t>(timeout_s * 1e9)
        if mc_poisoned != MC_CLOSED or self.worker == NULL:
            _alive(self.worker)
        with nogil:
            count = mc_worker_poll(self.worker, epoll_fd, events, EVENTS_MAX, spin_ns, timeout_ns)
        if count < 0:
            raise OSError(-count, os.strerror(-count))
        if not count:
            return ()
        return [(events[i].data.fd, events[i].events) for i in range(count)]

    def wait_away(self):
        """Return when no thread has been in `poll` for some milliseconds, or the worker is closed."""
        cdef mc_worker *worker = self.worker
        if worker == NULL or mc_poisoned:
            return
        mc_watch(worker)  # with the GIL: `close` waits for the counted threads
        with nogil:
            mc_wait_away(worker)

    def take(self):
        """Return all events, oldest first, as tuples.

            SMALL, owner, sequence, data     one or more records, as bytes; None for a message over the limit
            BULK, owner, sequence, placed, operation     operation None: the data has arrived, or *placed* is the
                                                         MemoryError with which it was refused
            DONE, operation
            ERROR, owner, status
            ROOM, owner     see `Lane.has_room`
            WIRED, owner    see `Lane.connect`

        Only the driver may call it, so that the order is kept.
        """
        _alive(self.worker)
        cdef list taken = []
        try:
            self._take(self.worker, taken)
        except MemoryError:
            if not taken:
                raise
        return taken

    cdef int _take(self, mc_worker *worker, list taken) except -1:
        """Append all events to *taken*, or drop them if it is None; one that raises, and later ones, are taken the next time."""
        cdef mc_event *event
        cdef Operation operation
        mc_take(worker)
        while True:
            event = mc_pop(worker)
            if event == NULL:
                return 0
            operation = None
            if event.kind == MC_EVENT_DONE:
                operation = <Operation>event.data
            try:
                if operation is None:
                    self._translate(worker, event, taken)
                elif taken is not None:
                    taken.append((DONE, operation))
            except BaseException:
                mc_give_back(worker, event)
                raise
            if operation is not None:
                operation.status = event.status
                operation.kept = None
                Py_DECREF(operation)  # UCX's; the event is part of it
            mc_dispose(worker, event)

    cdef int _translate(self, mc_worker *worker, mc_event *event, list taken) except -1:
        cdef Lane lane
        owner = self.owners[event.lane]
        if taken is None or owner is None or (<Lane>owner[0]).life != event.life:
            if event.data != NULL:
                mh_ucp.am_data_release(worker.ucp, event.data)
            return 0
        lane, owner = owner
        if event.kind == MC_EVENT_ERROR:
            taken.append((ERROR, owner, event.status))
        elif event.kind == MC_EVENT_ROOM:
            taken.append((ROOM, owner))
        elif event.kind == MC_EVENT_WIRED:
            taken.append((WIRED, owner))
        elif event.kind == MC_EVENT_SMALL:
            try:
                data = PyBytes_FromStringAndSize(event.bytes, event.num_bytes)
            except MemoryError:
                taken.append((ERROR, owner, MH_ERR_NO_MEMORY))
            else:
                taken.append((SMALL, owner, event.sequence, data))
        elif event.num_bytes > self.max_bytes:
            taken.append((SMALL, owner, event.sequence, None))
            if event.data != NULL:
                mh_ucp.am_data_release(worker.ucp, event.data)
        else:
            try:
                taken.append(self._land(event, lane, owner))
            except BaseException:
                # The message is lost, and those behind it would wait for it for ever.
                if event.data != NULL:
                    mh_ucp.am_data_release(worker.ucp, event.data)
                event.kind, event.status, event.data = MC_EVENT_ERROR, MH_ERR_NO_MEMORY, NULL
                raise
        return 0

    cdef tuple _land(self, mc_event *event, Lane lane, owner):
        cdef Span span
        cdef Target target = None
        cdef void *memory
        cdef void *data
        cdef size_t count = 1
        cdef Operation operation
        cdef mh_request_param_t param
        cdef int status
        sequence = event.sequence & _SEQUENCE_MASK
        try:
            found = owner.land(sequence, event.num_bytes) if lane.lands else None
            if found is not None:
                placed, target = found
            else:
                placed, view = self.place(event.num_bytes, <int>(event.sequence >> CONTAINER_SHIFT))
                span = Span(view, True)
        except MemoryError as error:
            if event.data != NULL:
                mh_ucp.am_data_release(self.worker.ucp, event.data)  # ends the peer's operation, too
                event.data = NULL
            return BULK, owner, sequence, error, None
        if not event.rendezvous:
            data = event.bytes if event.data == NULL else event.data
            if target is not None:
                mc_target_unpack(&target.target, 0, data, event.num_bytes)
            else:
                memcpy(<void *><uintptr_t>span.address, data, event.num_bytes)
            if event.data != NULL:
                mh_ucp.am_data_release(self.worker.ucp, event.data)
                event.data = NULL
            if lane.lands:
                owner.on_whole(sequence, <int>(event.sequence >> CONTAINER_SHIFT), placed)
            return BULK, owner, sequence, placed, None
        operation = _begin(self, (span, placed) if target is None else target)
        _parameters(&param, operation, mc_callback_received())
        if target is not None:
            param.op_attr_mask |= MH_OP_ATTR_FIELD_DATATYPE | MH_OP_ATTR_FIELD_MEMORY_TYPE
            param.datatype, param.memory_type = mc_target_type, MH_MEMORY_TYPE_HOST
            memory = &target.target
        else:
            memory, count = <void *><uintptr_t>span.address, event.num_bytes
        data, event.data = event.data, NULL
        with nogil:
            status = mc_started(
                mh_ucp.am_recv_data_nbx(self.worker.ucp, data, memory, count, &param),
                &operation.operation,
            )
        try:
            _started(status, operation, "receiving")
        except UcxError as error:
            return ERROR, owner, error.status
        return BULK, owner, sequence, placed, operation

    def register(self, Span span, bint writable):
        """Let peers get the memory of *span*, and put to it if *writable*."""
        _alive(self.worker)
        cdef Memory memory = Memory.__new__(Memory)
        cdef mh_mem_map_params_t params
        cdef void *packed
        cdef size_t length
        cdef mh_status_t status
        cdef int entered
        memory.worker = self
        memory.span = span
        memset(&params, 0, sizeof(params))
        params.field_mask = (MH_MEM_MAP_PARAM_FIELD_ADDRESS | MH_MEM_MAP_PARAM_FIELD_LENGTH |
                             MH_MEM_MAP_PARAM_FIELD_MEMORY_TYPE | MH_MEM_MAP_PARAM_FIELD_PROT)
        params.prot = MH_MEM_MAP_PROT_LOCAL_READ | MH_MEM_MAP_PROT_LOCAL_WRITE | MH_MEM_MAP_PROT_REMOTE_READ
        if writable:
            params.prot |= MH_MEM_MAP_PROT_REMOTE_WRITE
        params.address = <void *><uintptr_t>span.address
        params.length = span.num_bytes
        params.memory_type = MH_MEMORY_TYPE_CUDA if span.device else MH_MEMORY_TYPE_HOST
        entered = mc_gpu_enter() if span.device else 0
        status = mh_ucp.mem_map(self.worker.context, &params, &memory.handle)
        mc_gpu_leave(entered)
        _check(status, "registering memory")
        self.num_mapped += 1
        try:
            self.memories.add(memory)  # from here on it is unmapped before UCX is destroyed
            _check(mh_ucp.rkey_pack(self.worker.context, memory.handle, &packed, &length), "packing a memory key")
            try:
                memory.key = PyBytes_FromStringAndSize(<char *>packed, length)
            finally:
                mh_ucp.rkey_buffer_release(packed)
        except BaseException:
            memory._unmap(self.worker)
            raise
        return memory

    def close(self):
        """Stop the thread and UCX; lanes and memory can no longer be used.

        UCX cannot be destroyed while a peer that was being connected, or was sent something over tcp, does not answer:
        the worker is then abandoned, and destroyed by a later start or close in this process, once the peer has answered
        or died. Operations that UCX has by then fail.

        Returns:
            Whether all of UCX has been destroyed.
        """
        cdef mc_worker *worker = self.worker
        if worker == NULL or mc_lost(worker):
            self.worker = NULL
            return True
        with nogil:
            mc_thread_stop(worker)
        self.worker = NULL  # no thread enters any more
        self.ending = worker
        self.owners = [None] * len(self.owners)  # no owner gets events any more
        while self.num_inside:
            with nogil:
                usleep(50)
        ended = self._end(MC_CLOSE_NS)
        if not ended:
            _abandoned.append(self)
        _reap()
        return ended

    cdef bint _end(self, uint64_t patience_ns) except -1:
        """Destroy the closed worker, if that is possible in time."""
        cdef mc_worker *worker = self.ending
        cdef bint drained
        self._take(worker, None)  # returns UCX's buffers
        with nogil:
            drained = mc_worker_drain(worker, patience_ns)
        self._take(worker, None)
        while self.memories:
            (<Memory>self.memories.pop())._unmap(worker)
        if drained:
            self.ending = NULL
            with nogil:
                mc_worker_destroy(worker)
            self._take(worker, None)  # operations that ended only with UCX
            with nogil:
                mc_worker_free(worker)
        return drained

    def __dealloc__(self):
        # Never closed: its constructor failed, or the interpreter is exiting.
        if self.worker != NULL and not mc_lost(self.worker):
            mc_thread_stop(self.worker)
            if mc_worker_drain(self.worker, 0) and not mc_worker_busy(self.worker) and not self.num_mapped:
                mc_worker_destroy(self.worker)
                mc_worker_free(self.worker)


cdef list _abandoned = []
"""Workers that are closed, but could not be destroyed."""


def num_abandoned():
    """Number of closed workers that cannot be destroyed yet, see `Worker.close`; destroys those that can be."""
    return _reap()


cdef int _reap() except -1:
    """Destroy the abandoned workers that can be destroyed by now; return how many are left."""
    cdef Worker worker
    for _ in range(len(_abandoned)):
        if not _abandoned:  # another thread is reaping
            break
        worker = _abandoned.pop(0)
        if not worker._end(MC_REAP_NS):
            _abandoned.append(worker)
    return len(_abandoned)


cdef class Memory:
    """Memory that peers may get and put, until `close`."""

    cdef Worker worker
    cdef mh_mem_h handle
    cdef readonly Span span
    cdef readonly bytes key

    def close(self):
        """Revoke access; the caller makes sure that no peer is accessing the memory."""
        if self.worker.worker != NULL and not mc_poisoned:
            self._unmap(self.worker.worker)

    cdef _unmap(self, mc_worker *worker):
        if self.handle != NULL:
            mh_ucp.mem_unmap(worker.context, self.handle)
            self.worker.memories.discard(self)
            self.worker.num_mapped -= 1
        self.handle = NULL


cdef class RemoteKey:
    """A key of a peer's memory, unpacked for one lane."""

    cdef Lane lane
    cdef mh_rkey_h handle

    def __dealloc__(self):
        if self.handle != NULL and not mc_poisoned and self.lane.worker.worker != NULL:
            mh_ucp.rkey_destroy(self.handle)


cdef class Pieces:
    """A list of gets and puts with the memory of one peer, which `Lane.move_all` starts, any number of times.

    Args:
        moves: of each the `Span` of host memory here, the address there, the `RemoteKey`, and whether it is a put.
    """

    cdef mc_piece *pieces
    cdef size_t num
    cdef list kept

    def __cinit__(self, list moves):
        cdef Span span
        cdef RemoteKey key
        cdef mc_piece *piece
        self.pieces = <mc_piece *>calloc(len(moves) or 1, sizeof(mc_piece))
        if self.pieces == NULL:
            raise MemoryError(f"no memory for a list of {len(moves)} transfers")
        self.kept = moves
        for span, address, key, put in moves:
            piece = self.pieces + self.num
            piece.local, piece.num_bytes = <void *><uintptr_t>span.address, span.num_bytes
            piece.address, piece.key, piece.put = address, key.handle, put
            self.num += 1

    def __dealloc__(self):
        free(self.pieces)


cdef class Lane:
    """One peer: records and messages to it in order, and access to its memory.

    Attributes:
        token: must be in each message from the peer to this lane.
        lands: whether `Worker.take` asks the lane's owner where separate messages are to arrive. It calls
            ``owner.on_whole(sequence, container, placed)`` when one is there, ahead of its event, and before all others
            ``owner.land(sequence, num_bytes)``: this returns what its receiver gets and a `Target`, or None for `place`.
    """

    cdef Worker worker
    cdef mc_lane *lane
    cdef uint32_t life
    cdef readonly bytes token
    cdef public bint lands

    cdef int _open(self) except -1:
        _alive(self.worker.worker)
        if self.lane == NULL:
            raise UcxError("a closed UCX lane", -24)
        return 0

    def connect(self, bytes address, bytes token, bint over_sockets=False):
        """Connect the lane to the worker at *address*, whose lane has *token*; a WIRED event follows once both sides have.

        Messages may be sent before that.

        Args:
            over_sockets: UCX reaches it by its tcp.

        Raises:
            UcxError: no transport reaches it.
        """
        cdef mh_ep_params_t params
        cdef mh_status_t status
        cdef mc_lane *lane = self.lane
        cdef mc_worker *worker = self.worker.worker
        self._open()
        if len(token) != MC_TOKEN_BYTES or not address:
            raise UcxError("a peer's offer", -5)
        memcpy(self.lane.peer_token, <char *>token, MC_TOKEN_BYTES)
        self.lane.over_sockets = over_sockets
        memset(&params, 0, sizeof(params))
        params.field_mask = (MH_EP_PARAM_FIELD_REMOTE_ADDRESS | MH_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                             MH_EP_PARAM_FIELD_ERR_HANDLER)
        params.address = <mh_address_t *><char *>address
        params.err_mode = MH_ERR_HANDLING_MODE_PEER
        params.err_handler.cb = mc_callback_error()
        params.err_handler.arg = self.lane
        self.worker.num_inside += 1
        with nogil:
            status = mh_ucp.ep_create(worker.ucp, &params, &lane.endpoint)
            if status == MH_OK:
                mc_lane_wire(lane)
        self.worker.num_inside -= 1
        _check(status, "connecting")

    @property
    def transports(self):
        """Names of the transports in use, as far as UCX reports them."""
        cdef mh_transport_entry_t entries[16]
        cdef mh_ep_attr_t attributes
        cdef unsigned i
        self._open()
        if mh_ucp.ep_query == NULL or self.lane.endpoint == NULL:
            return ()
        memset(entries, 0, sizeof(entries))
        memset(&attributes, 0, sizeof(attributes))
        attributes.field_mask = MH_EP_ATTR_FIELD_TRANSPORTS
        attributes.transports.entries = entries
        attributes.transports.num_entries = 16
        attributes.transports.entry_size = sizeof(mh_transport_entry_t)
        if mh_ucp.ep_query(self.lane.endpoint, &attributes) != MH_OK:
            return ()
        names = {entries[i].transport_name.decode() for i in range(16) if entries[i].transport_name != NULL}
        return tuple(sorted(names))

    @property
    def pending_bytes(self):
        """Bytes that were sent and that no transport has taken yet."""
        return 0 if self.lane == NULL or self.worker.worker == NULL else mc_lane_pending_bytes(self.lane)

    def has_room(self, size_t limit):
        """Whether fewer than *limit* bytes are pending; if not, a ROOM event follows once they are."""
        return self.lane == NULL or self.worker.worker == NULL or bool(mc_lane_has_room(self.lane, limit))

    def send(self, bytes head, body, bint driving):
        """Send *head* and *body* as one record of at most `RECORD_BYTES`.

        Args:
            driving: the caller is the driver, which polls soon.

        Raises:
            UcxError: the peer is gone, or a message for it is lost; an ERROR event follows.
            MemoryError: the record is not sent.
        """
        cdef Py_buffer view
        cdef int status
        self._open()
        if type(body) is bytes:
            status = mc_send_small(self.lane, <char *>head, len(head), <char *><bytes>body, len(<bytes>body), driving)
        else:
            PyObject_GetBuffer(body, &view, PyBUF_ANY_CONTIGUOUS)
            status = mc_send_small(self.lane, <char *>head, len(head), view.buf, view.len, driving)
            PyBuffer_Release(&view)
        if status == MC_NO_BATCH:
            raise MemoryError("no memory for a message")
        if status != MH_OK:
            raise UcxError("sending", status)

    def reserve(self, unsigned count):
        """Reserve *count* consecutive sequence numbers for `send_bulk`, after all records; return the first."""
        cdef int status
        cdef uint64_t first
        self._open()
        first = mc_reserve(self.lane, count, &status)
        _check(status, "sending")
        return first

    def send_bulk(self, data, uint64_t sequence):
        """Send *data* (a buffer) as message number *sequence*; it must not change until the operation is done.

        The upper bits of *sequence*, from `CONTAINER_SHIFT` on, tell the receiver its container.

        Raises:
            UcxError: the peer is gone, or a message for it is lost; an ERROR event follows.
        """
        cdef int status
        cdef Span span = Span(data, False)  # may run user code, and other threads meanwhile
        self._open()
        cdef Operation operation = _begin(self.worker, span)
        cdef mc_lane *lane = self.lane  # another thread may close it while this one is without the GIL
        status = MH_ERR_NOT_CONNECTED
        if lane != NULL:
            self.worker.num_inside += 1
            with nogil:
                status = mc_send_bulk(
                    lane,
                    self.life,
                    operation.header,
                    <void *><uintptr_t>span.address,
                    span.num_bytes,
                    sequence,
                    &operation.operation,
                )
            self.worker.num_inside -= 1
        _started(status, operation, "sending")
        return operation

    def fail(self):
        """Cause an ERROR event: a number that was reserved will never be sent, and the peer would wait for it for ever."""
        if self.lane != NULL and self.worker.worker != NULL and not mc_poisoned:
            mc_lane_failed(self.lane, MH_ERR_NO_MEMORY)

    def unpack(self, bytes key):
        """Unpack the peer's memory key for this lane."""
        cdef RemoteKey remote
        cdef int entered
        cdef mh_status_t status
        self._open()
        if not key:
            raise UcxError("a memory key", -5)
        remote = RemoteKey.__new__(RemoteKey)
        remote.lane = self
        # UCX leaves out for good what it cannot open at this moment.
        entered = mc_gpu_enter()
        status = mh_ucp.ep_rkey_unpack(self.lane.endpoint, <char *>key, &remote.handle)
        mc_gpu_leave(entered)
        _check(status, "a memory key")
        return remote

    def get(self, Span into, uint64_t address, RemoteKey key):
        """Read the peer's memory at *address* into *into*."""
        return self._move(into, address, key, False)

    def put(self, Span data, uint64_t address, RemoteKey key):
        """Write *data* to the peer's memory at *address*; it has arrived when a later `flush` is done."""
        return self._move(data, address, key, True)

    cdef Operation _move(self, Span span, uint64_t address, RemoteKey key, bint put):
        cdef mh_request_param_t param
        cdef Operation operation
        cdef int status = MH_ERR_NOT_CONNECTED, entered
        cdef mc_lane *lane
        cdef void *local = <void *><uintptr_t>span.address
        cdef size_t count = span.num_bytes
        self._open()
        operation = _begin(self.worker, (span, key))
        _parameters(&param, operation, mc_callback_sent())
        if span.device:
            param.op_attr_mask |= MH_OP_ATTR_FIELD_MEMORY_TYPE
            param.memory_type = MH_MEMORY_TYPE_CUDA
        lane = self.lane  # as in `send_bulk`
        if lane != NULL:
            self.worker.num_inside += 1
            with nogil:
                entered = mc_gpu_enter()
                status = mc_move(
                    lane, self.life, put, local, count, address, key.handle, &param, &operation.operation
                )
                mc_gpu_leave(entered)
            self.worker.num_inside -= 1
        _started(status, operation, "a put" if put else "a get")
        return operation

    def move_all(self, Pieces pieces):
        """Start all *pieces*; return the operation that is done when all are, and fails as the first that has failed.

        Puts have arrived when a later `flush` is done.
        """
        cdef mh_request_param_t param
        cdef Operation operation
        cdef mc_lane *lane
        self._open()
        operation = _begin(self.worker, pieces)
        _parameters(&param, operation, mc_callback_piece())
        lane = self.lane  # as in `send_bulk`
        if lane == NULL:
            _started(MH_ERR_NOT_CONNECTED, operation, "a list of transfers")
        self.worker.num_inside += 1
        with nogil:
            mc_move_all(lane, self.life, pieces.pieces, pieces.num, &param, &operation.operation)
        self.worker.num_inside -= 1
        return operation

    def flush(self):
        """Return an operation that is done when everything sent and put before has arrived."""
        cdef mh_request_param_t param
        cdef Operation operation
        cdef int status = MH_ERR_NOT_CONNECTED
        cdef mc_lane *lane
        self._open()
        operation = _begin(self.worker, None)
        _parameters(&param, operation, mc_callback_sent())
        lane = self.lane  # as in `send_bulk`
        if lane != NULL:
            self.worker.num_inside += 1
            with nogil:
                status = mc_flush(lane, self.life, &param, &operation.operation)
            self.worker.num_inside -= 1
        _started(status, operation, "a flush")
        return operation

    def close(self):
        """Disconnect from the peer: operations in flight end, most by failing, and no event of the lane follows."""
        cdef mc_lane *lane = self.lane
        self.lane = NULL
        if lane == NULL or mc_poisoned or self.worker.worker == NULL:
            return
        self.worker.owners[lane.index] = None
        self.worker.num_inside += 1
        with nogil:
            mc_lane_close(lane)
        self.worker.num_inside -= 1
