/* The part of the binding that runs without the GIL: one UCX worker, its lanes, and a thread that progresses it.
 *
 * UCX's callbacks run on the thread that progresses the worker. They never touch Python: they put events into a
 * queue, which a Python thread takes as a whole. A *driver* is a Python thread inside `mc_worker_poll`. While there
 * is one, the worker's own thread sleeps; when Python computes, or holds the GIL in a C call, the thread takes over
 * after `MC_LEAVE_NS`, so that one-sided traffic and rendezvous continue. A driver does not wake it on leaving: it
 * sets an alarm, unless one is set, and the thread checks when the alarm fires.
 *
 * Small records to one peer share a message: the first after a poll is sent at once, later ones before the next poll
 * wait in a batch, which is sent by the driver, by the thread, or when it is full.
 */
#ifndef MC_CORE_H
#define MC_CORE_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "library.h"

#define MC_TOKEN_BYTES 16
#define MC_HEADER_BYTES (MC_TOKEN_BYTES + 8) /* token, sequence number */
#define MC_BATCH_BYTES 8000                  /* with UCX's own header below the 8 KiB segment of its transports */
#define MC_AM_SMALL 1
#define MC_AM_BULK 2
/* A driver returns within microseconds while calls are made in a loop. And where many share a core it may be away
 * because others run: to progress in its place costs more than it gains, since UCX's locks spin. */
#define MC_LEAVE_NS 2000000
#define MC_THREAD_LIMIT (64 << 20) /* bytes queued for Python at which the thread pauses, to slow the sender */
/* From here on the sender keeps a message until the receiver has memory for it, whatever UCX takes for faster: 1.18
 * sends all sizes eagerly over shared memory and tcp, and loses those for which the receiver has no memory. */
#define MC_RENDEZVOUS_BYTES (1 << 20)
#define MC_LANES_MAX 65536
#define MC_NO_BATCH 1
#define MC_BATCHES 4           /* in flight to one peer; beyond that a batch must be full to be sent */
#define MC_SOCKETS_EVERY 8     /* an epoll_wait costs as much as several empty progress calls */
/* Time that closing a worker waits for peers that were being connected: a live one answers within a millisecond, or
 * within a turn of a busy core; a frozen one never does. */
#define MC_CLOSE_NS 250000000
#define MC_REAP_NS 1000000     /* the same, when an abandoned worker is retried */
#define MC_ABANDONED_MAX 16    /* such workers, which could not be destroyed: each holds some MiB */

enum mc_event_kind { MC_EVENT_SMALL = 1, MC_EVENT_BULK, MC_EVENT_DONE, MC_EVENT_ERROR, MC_EVENT_ROOM, MC_EVENT_WIRED };

typedef struct mc_event {
    struct mc_event *next;
    int kind;
    int status;
    uint32_t lane;
    uint32_t life;      /* of the lane's slot */
    uint64_t sequence;
    void *data;         /* BULK: UCX's descriptor, or NULL when the bytes follow; DONE: the operation */
    size_t num_bytes;
    int rendezvous;     /* BULK: the bytes are still with the sender */
    /* Part of an operation or a lane, and not freed: what ends a wait must not need memory. */
    int embedded;
    _Atomic int queued; /* of a lane's own: pushed, and not yet taken */
    char *bytes;        /* behind the event, with what UCX does not keep */
} mc_event;

typedef struct mc_batch {
    struct mc_lane *lane;
    size_t used;
    unsigned char header[MC_HEADER_BYTES]; /* must stay valid until completion: openucx/ucx#10424 */
    char bytes[MC_BATCH_BYTES];
} mc_batch;

enum mc_lane_state { MC_LANE_FREE = 0, MC_LANE_OPEN, MC_LANE_CLOSING };

typedef struct mc_lane {
    struct mc_worker *worker;
    mh_ep_h endpoint;
    uint32_t index;
    uint32_t life;
    _Atomic int state;
    unsigned char own_token[MC_TOKEN_BYTES];    /* must be in each message from the peer */
    unsigned char peer_token[MC_TOKEN_BYTES];
    pthread_mutex_t lock;                       /* guards what follows */
    uint64_t sequence;
    mc_batch *batch;
    uint64_t sent_at_poll;                      /* the worker's `polls` at the last message */
    int dirty;
    struct mc_lane *next_dirty;
    _Atomic size_t pending_bytes;               /* accepted, and not yet with UCX's transport */
    _Atomic size_t room_below;                  /* a ROOM event is due below this many pending bytes; 0: none */
    _Atomic int pending;                        /* sends in flight */
    _Atomic int batches;                        /* batches in flight */
    _Atomic int wired;                          /* UCX has finished connecting the peer */
    int over_sockets;                           /* UCX reaches the peer by its tcp */
    _Atomic int drained;                        /* closing, and UCX has sent what it held; see `mc_lane_drain` */
    mc_event error, room, connected;            /* its ERROR, ROOM and WIRED events */
} mc_lane;

typedef struct mc_worker {
    mh_context_h context;
    mh_worker_h ucp;
    int event_fd;
    pthread_mutex_t events_lock;                /* guards the queue and the tokens of lanes */
    mc_event *head, **tail;
    mc_event *taken;                            /* taken, and not yet popped; guarded by the GIL */
    _Atomic size_t num_events;
    _Atomic size_t queued_bytes;
    _Atomic uint64_t num_refused;               /* messages with a wrong token */
    mc_lane *lanes[MC_LANES_MAX];
    uint32_t num_lanes;
    _Atomic uint32_t first_free;                /* no free slot below it */
    pthread_mutex_t dirty_lock;
    mc_lane *_Atomic dirty;
    /* progress */
    _Atomic uint64_t polls;
    _Atomic int driven, sleeping;
    _Atomic int sending;                        /* threads that send, and so hold UCX's lock or wait for it */
    unsigned since_sockets;
    pthread_t thread;
    int thread_runs;
    _Atomic int stop, parked;
    _Atomic int alarm_set;
    int kick_fd, alarm_fd;
    pthread_mutex_t away_lock;                  /* guards what follows, with *away_changed* */
    pthread_cond_t away_changed;
    uint64_t away_at;                           /* `polls` when the thread last found that there is no driver */
    _Atomic int num_watching;                   /* threads in `mc_wait_away` */
    _Atomic uint64_t thread_wakes;
    _Atomic int operations;                     /* Python's operations that UCX has */
} mc_worker;

/* An operation of Python's: `owner` is its object, returned in a DONE event. */
typedef struct mc_operation {
    mc_worker *worker;
    void *owner;
    mc_lane *lane;     /* the lane whose pending bytes it counts for, or NULL */
    size_t num_bytes;
    _Atomic size_t left;   /* of a list: pieces that have not ended */
    _Atomic int failed;    /* of a list: status of the first piece that failed */
    mc_event done;         /* its DONE event */
} mc_operation;

/* A get or put of a list. */
typedef struct mc_piece {
    void *local;
    size_t num_bytes;
    uint64_t address;
    mh_rkey_h key;
    int put;
} mc_piece;

static void mc_lane_closed(mc_lane *lane);
static void mc_lane_drain(mc_lane *lane);

/* Why UCX must not be used any more, if so: in a forked child, which it does not survive, and once the program has closed
 * its descriptors. */
#define MC_FORKED 1
#define MC_CLOSED 2
static _Atomic int mc_poisoned;

static inline uint64_t mc_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- events ---- */

static void mc_push_locked(mc_worker *worker, mc_event *event) {
    event->next = NULL;
    *worker->tail = event;
    worker->tail = &event->next;
    atomic_fetch_add(&worker->num_events, 1);
    atomic_fetch_add(&worker->queued_bytes, event->num_bytes);
}

static void mc_push(mc_worker *worker, mc_event *event) {
    pthread_mutex_lock(&worker->events_lock);
    mc_push_locked(worker, event);
    pthread_mutex_unlock(&worker->events_lock);
}

/* Push an event of a lane's own, unless it is still queued: its receiver then finds what has changed since, too.
 * The caller holds `events_lock`. */
static void mc_push_own(mc_lane *lane, mc_event *event, int kind, int status) {
    if (!atomic_exchange(&event->queued, 1)) {
        event->kind = kind;
        event->embedded = 1;
        event->status = status;
        event->lane = lane->index;
        event->life = lane->life;
        mc_push_locked(lane->worker, event);
    }
}

/* The same for callers that do not hold `events_lock`. */
static void mc_lane_tell(mc_lane *lane, mc_event *event, int kind, int status) {
    pthread_mutex_lock(&lane->worker->events_lock);
    mc_push_own(lane, event, kind, status);
    pthread_mutex_unlock(&lane->worker->events_lock);
}

/* Report that *lane* has failed: a message to or from its peer is lost, or the peer is. */
static void mc_lane_failed(mc_lane *lane, int status) {
    mc_lane_tell(lane, &lane->error, MC_EVENT_ERROR, status);
}

static void mc_lane_is_wired(mc_lane *lane) {
    atomic_store(&lane->wired, 1);
    mc_lane_tell(lane, &lane->connected, MC_EVENT_WIRED, MH_OK);
}

static void mc_lane_roomy(mc_lane *lane) {
    mc_lane_tell(lane, &lane->room, MC_EVENT_ROOM, MH_OK);
}

/* Take all events that were pushed, behind those that were given back. */
static void mc_take(mc_worker *worker) {
    mc_event **last = &worker->taken;
    if (!atomic_load(&worker->num_events))
        return;
    while (*last)
        last = &(*last)->next;
    pthread_mutex_lock(&worker->events_lock);
    *last = worker->head;
    worker->head = NULL;
    worker->tail = &worker->head;
    pthread_mutex_unlock(&worker->events_lock);
}

/* Return the oldest event that was taken; NULL if there is none. The caller disposes of it, or gives it back. */
static mc_event *mc_pop(mc_worker *worker) {
    mc_event *event = worker->taken;
    if (event)
        worker->taken = event->next;
    return event;
}

static void mc_give_back(mc_worker *worker, mc_event *event) {
    event->next = worker->taken;
    worker->taken = event;
}

static void mc_dispose(mc_worker *worker, mc_event *event) {
    atomic_fetch_sub(&worker->num_events, 1);
    atomic_fetch_sub(&worker->queued_bytes, event->num_bytes);
    if (event->embedded)
        atomic_store(&event->queued, 0);
    else
        free(event);
}

/* ---- callbacks of UCX ---- */

static mh_status_t mc_on_message(mc_worker *worker, int bulk, const void *header, size_t header_bytes, void *data,
                                     size_t num_bytes, uint64_t attributes) {
    int rendezvous = !!(attributes & MH_AM_RECV_ATTR_FLAG_RNDV);
    /* A rendezvous has no data yet that could be copied; our side never sends small frames that way. */
    if (header_bytes != MC_HEADER_BYTES || (rendezvous && !bulk)) {
        atomic_fetch_add(&worker->num_refused, 1);
        return MH_OK;
    }
    int hold = bulk && (rendezvous || (attributes & MH_AM_RECV_ATTR_FLAG_DATA));
    mc_event *event = malloc(sizeof *event + (hold ? 0 : num_bytes));
    uint32_t index;
    memcpy(&index, header, sizeof index);
    if (event) {
        event->kind = bulk ? MC_EVENT_BULK : MC_EVENT_SMALL;
        event->status = MH_OK;
        event->lane = index;
        memcpy(&event->sequence, (const char *)header + MC_TOKEN_BYTES, sizeof event->sequence);
        event->data = hold ? data : NULL;
        event->num_bytes = num_bytes;
        event->rendezvous = rendezvous;
        event->embedded = 0;
        event->bytes = (char *)(event + 1);
        if (!hold && num_bytes)
            memcpy(event->bytes, data, num_bytes);
    }
    pthread_mutex_lock(&worker->events_lock);
    mc_lane *lane = index < worker->num_lanes ? worker->lanes[index] : NULL;
    int known = lane && atomic_load(&lane->state) == MC_LANE_OPEN && !memcmp(header, lane->own_token, MC_TOKEN_BYTES);
    if (known && event) {
        event->life = lane->life;
        mc_push_locked(worker, event);
    } else if (known) { /* the messages behind it would wait for it for ever */
        mc_push_own(lane, &lane->error, MC_EVENT_ERROR, MH_ERR_NO_MEMORY);
    }
    pthread_mutex_unlock(&worker->events_lock);
    if (!known) {
        atomic_fetch_add(&worker->num_refused, 1);
        free(event);
    }
    return known && event && hold ? MH_INPROGRESS : MH_OK;
}

static mh_status_t mc_on_small(void *arg, const void *header, size_t header_bytes, void *data, size_t num_bytes,
                                   const mh_am_recv_param_t *param) {
    return mc_on_message(arg, 0, header, header_bytes, data, num_bytes, param->recv_attr);
}

static mh_status_t mc_on_bulk(void *arg, const void *header, size_t header_bytes, void *data, size_t num_bytes,
                                  const mh_am_recv_param_t *param) {
    return mc_on_message(arg, 1, header, header_bytes, data, num_bytes, param->recv_attr);
}

static void mc_on_error(void *arg, mh_ep_h endpoint, mh_status_t status) {
    (void)endpoint;
    mc_lane_failed(arg, status);
}

/* The transport has taken *num_bytes*. */
static void mc_sent(mc_lane *lane, size_t num_bytes) {
    size_t left = atomic_fetch_sub(&lane->pending_bytes, num_bytes) - num_bytes;
    size_t room_below = atomic_load(&lane->room_below);
    if (room_below && left < room_below && atomic_compare_exchange_strong(&lane->room_below, &room_below, 0))
        mc_lane_roomy(lane);
}

/* Schedule the batch of *lane* for `mc_flush_dirty`. */
static void mc_mark_dirty(mc_lane *lane) {
    mc_worker *worker = lane->worker;
    pthread_mutex_lock(&worker->dirty_lock);
    if (!lane->dirty) {
        lane->dirty = 1;
        lane->next_dirty = atomic_load(&worker->dirty);
        atomic_store(&worker->dirty, lane);
    }
    pthread_mutex_unlock(&worker->dirty_lock);
}

static void mc_on_batch_sent(void *request, mh_status_t status, void *arg) {
    (void)status; /* a failure also reaches the lane's error callback */
    mc_batch *batch = arg;
    mc_lane *lane = batch->lane;
    mc_sent(lane, batch->used);
    free(batch);
    if (atomic_fetch_sub(&lane->batches, 1) == MC_BATCHES)
        mc_mark_dirty(lane);
    atomic_fetch_sub(&lane->pending, 1);
    mh_ucp.request_free(request);
}

/* Count *operation*, which UCX is about to get; `mc_finish` or `mc_refused` ends it. */
static inline void mc_begin(mc_operation *operation) { atomic_fetch_add(&operation->worker->operations, 1); }
static inline void mc_refused(mc_operation *operation) { atomic_fetch_sub(&operation->worker->operations, 1); }

static void mc_finish(mc_operation *operation, int status) {
    if (operation->lane) {
        mc_sent(operation->lane, operation->num_bytes);
        atomic_fetch_sub(&operation->lane->pending, 1);
    }
    mc_worker *worker = operation->worker;
    operation->done.kind = MC_EVENT_DONE;
    operation->done.embedded = 1;
    operation->done.status = status;
    operation->done.data = operation->owner;
    mc_push(worker, &operation->done); /* from here on the operation is Python's */
    atomic_fetch_sub(&worker->operations, 1);
}

static void mc_on_sent(void *request, mh_status_t status, void *arg) {
    mc_finish(arg, status);
    mh_ucp.request_free(request);
}

/* Count *num* pieces of a list that have ended. */
static void mc_pieces_ended(mc_operation *operation, size_t num, int status) {
    int none = MH_OK;
    if (status != MH_OK)
        atomic_compare_exchange_strong(&operation->failed, &none, status);
    if (atomic_fetch_sub(&operation->left, num) == num)
        mc_finish(operation, atomic_load(&operation->failed));
}

static void mc_on_piece(void *request, mh_status_t status, void *arg) {
    mc_pieces_ended(arg, 1, status);
    mh_ucp.request_free(request);
}

static void mc_on_received(void *request, mh_status_t status, size_t num_bytes, void *arg) {
    (void)num_bytes;
    mc_finish(arg, status);
    mh_ucp.request_free(request);
}

static void mc_on_wired(void *request, mh_status_t status, void *arg) {
    mc_lane *lane = arg;
    if (status == MH_OK)
        mc_lane_is_wired(lane);
    atomic_fetch_sub(&lane->pending, 1);
    mh_ucp.request_free(request);
}

static void mc_on_drained(void *request, mh_status_t status, void *arg) {
    (void)status; /* below 0 if the peer is gone, which leaves nothing to wait for either */
    mc_lane *lane = arg;
    atomic_store(&lane->drained, 1);
    mc_mark_dirty(lane); /* an endpoint is not closed within a callback */
    mh_ucp.request_free(request);
}

static void mc_on_closed(void *request, mh_status_t status, void *arg) {
    (void)status;
    mc_lane_closed(arg);
    mh_ucp.request_free(request);
}

/* ---- memory for arriving messages ---- */

#define MC_SPARES 8
#define MC_SPARE_BYTES (512ul << 20)
#define MC_MAPPED_BYTES (128ul << 10) /* below, malloc keeps its pages itself */
#define MC_PAGE_BYTES (64ul << 10)
#define MC_HUGE_BYTES (2ul << 20)

typedef struct mc_mapping {
    void *address;
    size_t num_bytes;
} mc_mapping;

/* Free mappings: faulting in fresh pages costs more than copying into them. The kernel may reclaim the large ones
 * (MADV_FREE) when it needs memory. Guarded by the GIL. */
static mc_mapping mc_spares[MC_SPARES];
static size_t mc_spare_bytes;

static mc_mapping mc_map(size_t num_bytes) {
    mc_mapping mapping = {NULL, num_bytes};
    if (num_bytes < MC_MAPPED_BYTES) {
        if (posix_memalign(&mapping.address, 64, num_bytes ? num_bytes : 1))
            mapping.address = NULL;
        return mapping;
    }
    size_t unit = num_bytes >= 2 * MC_HUGE_BYTES ? MC_HUGE_BYTES : MC_PAGE_BYTES;
    mapping.num_bytes = (num_bytes + unit - 1) / unit * unit;
    mc_mapping *best = NULL;
    for (mc_mapping *spare = mc_spares; spare < mc_spares + MC_SPARES; spare++)
        if (spare->address && spare->num_bytes >= mapping.num_bytes && spare->num_bytes / 2 <= mapping.num_bytes &&
            (!best || spare->num_bytes < best->num_bytes))
            best = spare;
    if (best) {
        mapping = *best;
        best->address = NULL;
        mc_spare_bytes -= mapping.num_bytes;
        return mapping;
    }
    mapping.address = mmap(NULL, mapping.num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping.address == MAP_FAILED)
        mapping.address = NULL;
    else if (unit == MC_HUGE_BYTES)
        madvise(mapping.address, mapping.num_bytes, MADV_HUGEPAGE);
    return mapping;
}

static void mc_unmap(mc_mapping mapping) {
    if (mapping.num_bytes < MC_MAPPED_BYTES) {
        free(mapping.address);
        return;
    }
    if (mc_spare_bytes + mapping.num_bytes <= MC_SPARE_BYTES)
        for (mc_mapping *spare = mc_spares; spare < mc_spares + MC_SPARES; spare++)
            if (!spare->address) {
                if (mapping.num_bytes >= 2 * MC_HUGE_BYTES)
                    madvise(mapping.address, mapping.num_bytes, MADV_FREE);
                *spare = mapping;
                mc_spare_bytes += mapping.num_bytes;
                return;
            }
    munmap(mapping.address, mapping.num_bytes);
}

/* ---- memory that can be taken back while a message arrives in it ----
 *
 * UCX cannot withdraw a receive in the middle of a message. So it does not get the memory: it gets a data type of ours, and
 * gives each fragment that has arrived to `mc_target_unpack`. Over sockets this costs nothing, since there UCX copies each
 * fragment from its buffer anyway. */

typedef struct mc_target {
    pthread_mutex_t lock; /* held while a fragment is copied */
    char *address;        /* NULL: not known yet, or taken back; fragments are dropped */
    size_t num_bytes;
    int withdrawn;
} mc_target;

static mh_datatype_t mc_target_type; /* of all targets; one libucp is loaded in a process */

static void *mc_target_start_pack(void *context, const void *buffer, size_t count) {
    (void)context, (void)buffer, (void)count;
    return NULL;
}

static void *mc_target_start_unpack(void *context, void *buffer, size_t count) {
    (void)context, (void)count;
    return buffer;
}

static size_t mc_target_size(void *state) { return ((mc_target *)state)->num_bytes; }

static size_t mc_target_pack(void *state, size_t offset, void *data, size_t num_bytes) {
    (void)state, (void)offset, (void)data, (void)num_bytes;
    return 0;
}

static mh_status_t mc_target_unpack(void *state, size_t offset, const void *data, size_t num_bytes) {
    mc_target *target = state;
    if (offset > target->num_bytes || num_bytes > target->num_bytes - offset)
        return MH_ERR_MESSAGE_TRUNCATED;
    pthread_mutex_lock(&target->lock);
    if (target->address)
        memcpy(target->address + offset, data, num_bytes);
    pthread_mutex_unlock(&target->lock);
    return MH_OK;
}

static void mc_target_finish(void *state) { (void)state; }

/* Make the data type; returns a UCX status. With the GIL held. */
static int mc_target_prepare(void) {
    static const mh_generic_dt_ops_t ops = {mc_target_start_pack, mc_target_start_unpack, mc_target_size,
                                            mc_target_pack,       mc_target_unpack,       mc_target_finish};
    return mc_target_type ? MH_OK : mh_ucp.dt_create_generic(&ops, NULL, &mc_target_type);
}

static void mc_target_init(mc_target *target, size_t num_bytes) {
    pthread_mutex_init(&target->lock, NULL);
    target->address = NULL;
    target->num_bytes = num_bytes;
    target->withdrawn = 0;
}

/* Give *target* its memory, unless it was withdrawn. */
static void mc_target_set(mc_target *target, void *address) {
    pthread_mutex_lock(&target->lock);
    if (!target->withdrawn)
        target->address = address;
    pthread_mutex_unlock(&target->lock);
}

/* Take the memory back: once this has returned, nothing writes to it. */
static void mc_target_withdraw(mc_target *target) {
    pthread_mutex_lock(&target->lock);
    target->withdrawn = 1;
    target->address = NULL;
    pthread_mutex_unlock(&target->lock);
}

static void mc_target_destroy(mc_target *target) { pthread_mutex_destroy(&target->lock); }

/* ---- small records ---- */

/* Send the batch of *lane*, whose lock is held; returns a UCX status. */
static int mc_flush_locked(mc_lane *lane) {
    mc_batch *batch = lane->batch;
    if (!batch || !batch->used || atomic_load(&lane->state) != MC_LANE_OPEN)
        return MH_OK;
    memcpy(batch->header, lane->peer_token, MC_TOKEN_BYTES);
    memcpy(batch->header + MC_TOKEN_BYTES, &lane->sequence, sizeof lane->sequence);
    lane->sequence++;
    mh_request_param_t param;
    param.op_attr_mask = MH_OP_ATTR_FIELD_CALLBACK | MH_OP_ATTR_FIELD_USER_DATA | MH_OP_ATTR_FIELD_FLAGS;
    param.flags = MH_AM_SEND_FLAG_EAGER;
    param.cb.send = mc_on_batch_sent;
    param.user_data = batch;
    /* Before the call: its completion may run on another thread before the call returns. */
    atomic_fetch_add(&lane->pending, 1);
    atomic_fetch_add(&lane->batches, 1);
    atomic_fetch_add(&lane->worker->sending, 1);
    void *request = mh_ucp.am_send_nbx(lane->endpoint, MC_AM_SMALL, batch->header, MC_HEADER_BYTES, batch->bytes,
                                               batch->used, &param);
    atomic_fetch_sub(&lane->worker->sending, 1);
    if (request != NULL && !MH_PTR_IS_ERR(request)) {
        lane->batch = NULL; /* the callback frees it */
        return MH_OK;
    }
    atomic_fetch_sub(&lane->batches, 1);
    atomic_fetch_sub(&lane->pending, 1);
    atomic_fetch_sub(&lane->pending_bytes, batch->used);
    batch->used = 0;
    if (request == NULL)
        return MH_OK;
    mc_lane_failed(lane, MH_PTR_STATUS(request)); /* the peer would wait for its number for ever */
    return MH_PTR_STATUS(request);
}

static void mc_flush_lane(mc_lane *lane) {
    if (atomic_exchange(&lane->drained, 0)) {
        mc_lane_drain(lane);
        return;
    }
    /* Where the transport is full, `mc_on_batch_sent` marks the lane again. */
    if (atomic_load(&lane->batches) >= MC_BATCHES)
        return;
    pthread_mutex_lock(&lane->lock);
    mc_flush_locked(lane);
    pthread_mutex_unlock(&lane->lock);
}

/* Send all scheduled batches, and disconnect the lanes that have drained. */
static void mc_flush_dirty(mc_worker *worker) {
    while (atomic_load(&worker->dirty)) {
        pthread_mutex_lock(&worker->dirty_lock);
        mc_lane *lane = atomic_load(&worker->dirty);
        if (lane) {
            atomic_store(&worker->dirty, lane->next_dirty);
            lane->dirty = 0;
        }
        pthread_mutex_unlock(&worker->dirty_lock);
        if (lane)
            mc_flush_lane(lane);
    }
}

static void mc_kick(mc_worker *worker) {
    if (atomic_exchange(&worker->parked, 0)) {
        uint64_t one = 1;
        ssize_t written = write(worker->kick_fd, &one, sizeof one);
        (void)written;
    }
}

/* Send one record, in a separate message or batched; returns a UCX status, or `MC_NO_BATCH`, if it was not sent for
 * want of memory. Records contain their length. *driving*: the caller polls soon, and thereby sends the batch. */
static int mc_send_small(mc_lane *lane, const void *head, size_t head_bytes, const void *body, size_t body_bytes,
                         int driving) {
    mc_worker *worker = lane->worker;
    size_t needed = head_bytes + body_bytes;
    int status = MH_OK, kick = 0;
    pthread_mutex_lock(&lane->lock);
    if (lane->batch && lane->batch->used + needed > MC_BATCH_BYTES)
        status = mc_flush_locked(lane);
    if (!lane->batch) {
        lane->batch = malloc(sizeof *lane->batch);
        if (!lane->batch) {
            pthread_mutex_unlock(&lane->lock);
            return status != MH_OK ? status : MC_NO_BATCH;
        }
        lane->batch->lane = lane;
        lane->batch->used = 0;
    }
    mc_batch *batch = lane->batch;
    char *at = batch->bytes + batch->used;
    memcpy(at, head, head_bytes);
    memcpy(at + head_bytes, body, body_bytes);
    int first = !batch->used;
    batch->used += needed;
    atomic_fetch_add(&lane->pending_bytes, needed);
    uint64_t polls = atomic_load(&worker->polls);
    if (lane->sent_at_poll != polls && atomic_load(&lane->batches) < MC_BATCHES) {
        if (status == MH_OK)
            status = mc_flush_locked(lane);
        lane->sent_at_poll = polls;
    } else if (first) {
        mc_mark_dirty(lane);
        /* A driver that has just left returns in a loop of calls, or the alarm fires: no need to wake the thread. */
        kick = !driving && (atomic_load(&worker->driven) ? atomic_load(&worker->sleeping) : !atomic_load(&worker->alarm_set));
    }
    pthread_mutex_unlock(&lane->lock);
    if (kick)
        mc_kick(worker);
    return status;
}

/* Return the status of a UCX call. An operation that completed at once ends in a DONE event, too. */
static int mc_started(void *request, mc_operation *operation) {
    if (request == NULL)
        mc_finish(operation, MH_OK);
    return MH_PTR_IS_ERR(request) ? MH_PTR_STATUS(request) : MH_OK;
}

/* Reserve *count* consecutive numbers, after those of all records; returns the first, and a UCX status in *status*. */
static uint64_t mc_reserve(mc_lane *lane, unsigned count, int *status) {
    pthread_mutex_lock(&lane->lock);
    *status = mc_flush_locked(lane);
    uint64_t first = lane->sequence;
    lane->sequence += count;
    pthread_mutex_unlock(&lane->lock);
    return first;
}

/* Whether *lane*, whose lock is held, is open and has not been reused for another peer. */
static int mc_lives(mc_lane *lane, uint32_t life) {
    return atomic_load(&lane->state) == MC_LANE_OPEN && lane->life == life;
}

/* Send *num_bytes* at *data* as message number *sequence*; returns a UCX status.
 * *header* and *data* must stay valid until the operation is done. */
static int mc_send_bulk(mc_lane *lane, uint32_t life, unsigned char *header, const void *data, size_t num_bytes,
                        uint64_t sequence, mc_operation *operation) {
    int status = MH_ERR_NOT_CONNECTED;
    memcpy(header, lane->peer_token, MC_TOKEN_BYTES);
    memcpy(header + MC_TOKEN_BYTES, &sequence, sizeof sequence);
    mh_request_param_t param;
    param.op_attr_mask = MH_OP_ATTR_FIELD_CALLBACK | MH_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = mc_on_sent;
    param.user_data = operation;
    if (num_bytes >= MC_RENDEZVOUS_BYTES) {
        param.op_attr_mask |= MH_OP_ATTR_FIELD_FLAGS;
        param.flags = MH_AM_SEND_FLAG_RNDV;
    }
    operation->lane = lane;
    operation->num_bytes = num_bytes;
    atomic_fetch_add(&lane->pending, 1);
    atomic_fetch_add(&lane->pending_bytes, operation->num_bytes);
    pthread_mutex_lock(&lane->lock); /* against `mc_lane_close` */
    atomic_fetch_add(&lane->worker->sending, 1);
    if (mc_lives(lane, life)) {
        status = mc_started(mh_ucp.am_send_nbx(lane->endpoint, MC_AM_BULK, header, MC_HEADER_BYTES, data, num_bytes,
                                               &param),
                            operation);
        if (status != MH_OK)
            mc_lane_failed(lane, status);
    }
    atomic_fetch_sub(&lane->worker->sending, 1);
    pthread_mutex_unlock(&lane->lock);
    if (status != MH_OK) {
        atomic_fetch_sub(&lane->pending, 1);
        atomic_fetch_sub(&lane->pending_bytes, operation->num_bytes);
    }
    return status;
}

/* Move *num_bytes* between *local* and the peer's memory; returns a UCX status. */
static int mc_move(mc_lane *lane, uint32_t life, int put, void *local, size_t num_bytes, uint64_t address,
                   mh_rkey_h key, const mh_request_param_t *param, mc_operation *operation) {
    int status = MH_ERR_NOT_CONNECTED;
    pthread_mutex_lock(&lane->lock); /* against `mc_lane_close` */
    if (mc_lives(lane, life))
        status = mc_started(put ? mh_ucp.put_nbx(lane->endpoint, local, num_bytes, address, key, param)
                                : mh_ucp.get_nbx(lane->endpoint, local, num_bytes, address, key, param),
                            operation);
    pthread_mutex_unlock(&lane->lock);
    return status;
}

/* Start all *pieces*; *operation* ends when they have, also if the lane is closed meanwhile. */
static void mc_move_all(mc_lane *lane, uint32_t life, const mc_piece *pieces, size_t num,
                        const mh_request_param_t *param, mc_operation *operation) {
    size_t ended = 1, i;
    int status = MH_OK;
    atomic_store(&operation->failed, MH_OK);
    atomic_store(&operation->left, num + 1); /* the one more is for this function */
    for (i = 0; i < num && status == MH_OK; i++) {
        const mc_piece *piece = pieces + i;
        void *request = NULL;
        status = MH_ERR_NOT_CONNECTED;
        pthread_mutex_lock(&lane->lock); /* for one at a time, so that senders come in between */
        if (mc_lives(lane, life)) {
            request = piece->put ? mh_ucp.put_nbx(lane->endpoint, piece->local, piece->num_bytes, piece->address,
                                                  piece->key, param)
                                 : mh_ucp.get_nbx(lane->endpoint, piece->local, piece->num_bytes, piece->address,
                                                  piece->key, param);
            status = MH_PTR_IS_ERR(request) ? MH_PTR_STATUS(request) : MH_OK;
        }
        pthread_mutex_unlock(&lane->lock);
        if (request == NULL || status != MH_OK)
            ended++;
    }
    mc_pieces_ended(operation, ended + num - i, status);
}

/* Start a flush, which is done when all earlier puts have arrived; returns a UCX status. */
static int mc_flush(mc_lane *lane, uint32_t life, const mh_request_param_t *param, mc_operation *operation) {
    int status = MH_ERR_NOT_CONNECTED;
    pthread_mutex_lock(&lane->lock);
    if (mc_lives(lane, life))
        status = mc_started(mh_ucp.ep_flush_nbx(lane->endpoint, param), operation);
    pthread_mutex_unlock(&lane->lock);
    return status;
}

/* ---- GPUs ---- */

/* A context of a GPU, and the driver's functions for the context of a thread; NULL while no memory of GPUs is used.
 * UCX calls the driver for such memory, which fails, or crashes, on a thread without a context. */
static struct {
    _Atomic(void *) context;
    int (*get_current)(void **);
    int (*push_current)(void *);
    int (*pop_current)(void **);
} mc_gpu;

static void mc_use_gpu(void *context, void *get_current, void *push_current, void *pop_current) {
    mc_gpu.get_current = (int (*)(void **))get_current;
    mc_gpu.push_current = (int (*)(void *))push_current;
    mc_gpu.pop_current = (int (*)(void **))pop_current;
    atomic_store(&mc_gpu.context, context);
}

/* Give this thread the context, unless it has one; returns whether it got it, for `mc_gpu_leave`. */
static int mc_gpu_enter(void) {
    void *context = atomic_load(&mc_gpu.context), *current = NULL;
    return context && !mc_gpu.get_current(&current) && !current && !mc_gpu.push_current(context);
}

/* Take it away again: what the program's threads call later chooses the GPU for itself. */
static void mc_gpu_leave(int entered) {
    void *popped;
    if (entered)
        mc_gpu.pop_current(&popped);
}

/* ---- progress ---- */

/* Progress until there are events or nothing moves; returns whether anything has moved. */
static int mc_progress(mc_worker *worker) {
    int moved = 0;
    while (mh_ucp.worker_progress(worker->ucp)) {
        moved = 1;
        if (atomic_load(&worker->num_events))
            break;
    }
    return moved;
}

/* epoll_wait, without UCX's own descriptor: that one stays readable until the worker is armed again. */
static int mc_ask_sockets(mc_worker *worker, int epoll_fd, struct epoll_event *events, int max, int timeout_ms) {
    int count = epoll_wait(epoll_fd, events, max, timeout_ms), kept = 0;
    if (count < 0)
        return -errno;
    for (int i = 0; i < count; i++)
        if (events[i].data.fd != worker->event_fd)
            events[kept++] = events[i];
    return kept;
}

/* Whether UCX must not be used. libucp asserts what it does with its descriptors, which a program may have closed
 * (os.closerange). */
static int mc_lost(mc_worker *worker) {
    if (!atomic_load(&mc_poisoned) && worker->event_fd >= 0 && fcntl(worker->event_fd, F_GETFD) < 0)
        atomic_store(&mc_poisoned, MC_CLOSED);
    return atomic_load(&mc_poisoned);
}

/* Sleep until UCX or *epoll_fd* is ready, or the time is over; returns as `mc_ask_sockets`. Does not sleep, and returns
 * -EAGAIN, if another thread has sent something; or -EBUSY, if UCX has something to do. That stays so while its messages
 * wait for room in a peer's queue: a caller that finds nothing to do leaves the core to the peer, which may share it. */
static int mc_sleep(mc_worker *worker, int epoll_fd, struct epoll_event *events, int max, int64_t left_ns) {
    int64_t left_ms = left_ns < 0 ? -1 : (left_ns + 999999) / 1000000;
    int count = -EAGAIN;
    atomic_store(&worker->sleeping, 1);
    if (!atomic_load(&worker->dirty))
        count = mh_ucp.worker_arm(worker->ucp) != MH_OK
                    ? -EBUSY
                    : mc_ask_sockets(worker, epoll_fd, events, max, left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
    atomic_store(&worker->sleeping, 0);
    return mc_lost(worker) ? -EBADF : count;
}

/* Let the thread check after `MC_LEAVE_NS`, unless that is due already. */
static void mc_set_alarm(mc_worker *worker) {
    if (!atomic_load(&worker->alarm_set) && !atomic_exchange(&worker->alarm_set, 1)) {
        struct itimerspec in = {{0, 0}, {0, MC_LEAVE_NS}};
        timerfd_settime(worker->alarm_fd, 0, &in, NULL);
    }
}

/* Drive: wait until there are events, *epoll_fd* is ready, or the time is over; returns the number of epoll events,
 * or -errno. */
static int mc_worker_poll(mc_worker *worker, int epoll_fd, struct epoll_event *events, int max, int64_t spin_ns,
                          int64_t timeout_ns) {
    uint64_t began_ns = 0;
    if (mc_lost(worker))
        return -EBADF;
    int count = 0, busy = 0, entered = mc_gpu_enter();
    atomic_fetch_add(&worker->polls, 1);
    atomic_store(&worker->driven, 1);
    for (;;) {
        mc_flush_dirty(worker);
        int moved = mc_progress(worker);
        int came = atomic_load(&worker->num_events) != 0, over = !timeout_ns;
        if (!came && !over) {
            uint64_t now_ns = mc_now_ns();
            if (!began_ns)
                began_ns = now_ns;
            int64_t passed_ns = (int64_t)(now_ns - began_ns);
            over = timeout_ns > 0 && passed_ns >= timeout_ns;
            if (!over && passed_ns >= spin_ns) {
                if (busy && !moved)
                    sched_yield();
                count = mc_sleep(worker, epoll_fd, events, max, timeout_ns < 0 ? -1 : timeout_ns - passed_ns);
                busy = count == -EBUSY;
                if (count > 0)
                    mc_progress(worker);
                if (count && count != -EAGAIN && !busy)
                    break;
            }
        }
        /* Sockets must not starve while messages keep arriving. */
        if (over || ++worker->since_sockets >= MC_SOCKETS_EVERY) {
            worker->since_sockets = 0;
            count = mc_ask_sockets(worker, epoll_fd, events, max, 0);
        } else {
            count = 0;
        }
        if (came || over || count)
            break;
    }
    mc_flush_dirty(worker);
    mc_gpu_leave(entered);
    atomic_store(&worker->driven, 0);
    mc_set_alarm(worker);
    if (atomic_load(&worker->dirty)) /* threads that sent while we left saw a driver, and did not kick */
        mc_kick(worker);
    return count == -EINTR ? 0 : count; /* a signal, such as SIGCONT, is not a failure: Python may handle it */
}

/* Return when there was no driver for `MC_LEAVE_NS`, or the thread ends. The caller has counted itself as watching. */
static void mc_wait_away(mc_worker *worker) {
    mc_set_alarm(worker);
    pthread_mutex_lock(&worker->away_lock);
    while (!atomic_load(&worker->stop) &&
           (atomic_load(&worker->driven) || worker->away_at != atomic_load(&worker->polls)))
        pthread_cond_wait(&worker->away_changed, &worker->away_lock);
    atomic_fetch_sub(&worker->num_watching, 1);
    pthread_cond_broadcast(&worker->away_changed);
    pthread_mutex_unlock(&worker->away_lock);
}

static void mc_tell_away(mc_worker *worker, uint64_t polls) {
    pthread_mutex_lock(&worker->away_lock);
    worker->away_at = polls;
    pthread_cond_broadcast(&worker->away_changed);
    pthread_mutex_unlock(&worker->away_lock);
}

static inline void mc_watch(mc_worker *worker) { atomic_fetch_add(&worker->num_watching, 1); }

static void mc_drain(int fd) {
    uint64_t times;
    ssize_t got = read(fd, &times, sizeof times);
    (void)got;
}

/* The worker's own thread: progresses while there is no driver. */
static void *mc_thread_main(void *arg) {
    mc_worker *worker = arg;
    struct pollfd fds[3] = {{worker->kick_fd, POLLIN, 0}, {worker->alarm_fd, POLLIN, 0}, {worker->event_fd, POLLIN, 0}};
    uint64_t seen = 0; /* `polls` when the alarm last fired */
    int drives = 0, busy = 0, entered = 0;
    while (!atomic_load(&worker->stop)) {
        int moved = 0;
        if (mc_lost(worker)) { /* the next driver fails */
            atomic_store(&worker->stop, 1);
            mc_tell_away(worker, UINT64_MAX);
            break;
        }
        if (!entered)
            entered = mc_gpu_enter();
        mc_flush_dirty(worker);
        while (drives) {
            mc_flush_dirty(worker);
            int full = atomic_load(&worker->queued_bytes) > MC_THREAD_LIMIT;
            drives = !full && !atomic_load(&worker->driven) && atomic_load(&worker->polls) == seen;
            if (full)
                mc_set_alarm(worker);
            if (drives && !mh_ucp.worker_progress(worker->ucp))
                break;
            moved = 1;
        }
        int was_busy = busy;
        busy = drives && mh_ucp.worker_arm(worker->ucp) != MH_OK;
        if (busy) {
            if (was_busy && !moved)
                sched_yield(); /* see `mc_sleep` */
            continue;
        }
        atomic_store(&worker->parked, 1);
        /* A change between the check and `parked` kicked nothing: check again. */
        int num_ready = 0;
        if (!atomic_load(&worker->dirty) && !atomic_load(&worker->stop)) {
            num_ready = poll(fds, drives ? 3 : 2, -1);
            atomic_fetch_add(&worker->thread_wakes, 1);
        }
        atomic_store(&worker->parked, 0);
        if (num_ready > 0 && fds[0].revents)
            mc_drain(worker->kick_fd);
        if (num_ready > 0 && fds[1].revents) {
            mc_drain(worker->alarm_fd);
            atomic_store(&worker->alarm_set, 0);
            /* From here on leaving drivers set the alarm; drivers that left before are visible in `driven`. */
            uint64_t polls = atomic_load(&worker->polls);
            if (!atomic_load(&worker->driven)) {
                /* A sender that wakes its peer may lose the core to it while it holds UCX's lock, which spins. */
                drives = polls == seen && !atomic_load(&worker->sending);
                if (drives)
                    mc_tell_away(worker, polls);
                else
                    mc_set_alarm(worker);
            }
            seen = polls;
        }
    }
    return NULL;
}

/* ---- lifetime ---- */

static mc_worker *mc_worker_new(void) {
    mc_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return NULL;
    worker->tail = &worker->head;
    worker->event_fd = -1;
    pthread_mutex_init(&worker->events_lock, NULL);
    pthread_mutex_init(&worker->dirty_lock, NULL);
    pthread_mutex_init(&worker->away_lock, NULL);
    pthread_cond_init(&worker->away_changed, NULL);
    worker->away_at = UINT64_MAX;
    worker->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    worker->alarm_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return worker;
}

static int mc_thread_start(mc_worker *worker) {
    int failed = worker->kick_fd < 0 || worker->alarm_fd < 0 ||
                 pthread_create(&worker->thread, NULL, mc_thread_main, worker);
    worker->thread_runs = !failed;
    return failed;
}

static void mc_thread_stop(mc_worker *worker) {
    if (worker->thread_runs) {
        uint64_t one = 1;
        atomic_store(&worker->stop, 1);
        ssize_t written = write(worker->kick_fd, &one, sizeof one);
        (void)written;
        pthread_join(worker->thread, NULL);
        worker->thread_runs = 0;
        mc_tell_away(worker, UINT64_MAX);
    }
}

/* Open a free slot, or a new one; NULL when all are taken, or there is no memory. */
static mc_lane *mc_lane_open(mc_worker *worker, const unsigned char *random) {
    mc_lane *lane = NULL;
    uint32_t i = worker->first_free, first_free = UINT32_MAX;
    for (; i < worker->num_lanes && !lane; i++) {
        mc_lane *slot = worker->lanes[i];
        if (atomic_load(&slot->state) != MC_LANE_FREE)
            continue;
        if (atomic_load(&slot->pending) || atomic_load(&slot->error.queued) || atomic_load(&slot->room.queued))
            first_free = i < first_free ? i : first_free; /* soon */
        else
            lane = slot;
    }
    worker->first_free = i < first_free ? i : first_free;
    if (!lane) {
        if (worker->num_lanes == MC_LANES_MAX || !(lane = calloc(1, sizeof *lane)))
            return NULL;
        lane->worker = worker;
        lane->index = worker->num_lanes;
        pthread_mutex_init(&lane->lock, NULL);
    }
    pthread_mutex_lock(&lane->lock); /* a sender may still hold a reference from the slot's former life */
    pthread_mutex_lock(&worker->events_lock);
    lane->life++;
    memcpy(lane->own_token, random, MC_TOKEN_BYTES);
    memcpy(lane->own_token, &lane->index, sizeof lane->index);
    lane->endpoint = NULL;
    lane->sequence = 0;
    lane->sent_at_poll = 0;
    atomic_store(&lane->pending_bytes, 0);
    atomic_store(&lane->batches, 0);
    atomic_store(&lane->room_below, 0);
    atomic_store(&lane->wired, 0);
    lane->over_sockets = 0;
    atomic_store(&lane->drained, 0);
    if (lane->batch)
        lane->batch->used = 0;
    atomic_store(&lane->state, MC_LANE_OPEN);
    if (lane->index == worker->num_lanes)
        worker->lanes[worker->num_lanes++] = lane;
    pthread_mutex_unlock(&worker->events_lock);
    pthread_mutex_unlock(&lane->lock);
    return lane;
}

static void mc_lane_closed(mc_lane *lane) {
    atomic_store(&lane->state, MC_LANE_FREE);
    if (lane->index < lane->worker->first_free)
        lane->worker->first_free = lane->index;
}

/* Detect when UCX has connected *lane*: until then it must not be torn down. 1.13 aborts the process if an
 * endpoint over tcp is force-closed while it still answers the peer's connection request. */
static void mc_lane_wire(mc_lane *lane) {
    mh_request_param_t param;
    param.op_attr_mask = MH_OP_ATTR_FIELD_CALLBACK | MH_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = mc_on_wired;
    param.user_data = lane;
    atomic_fetch_add(&lane->pending, 1); /* keeps the slot from being reused before the answer */
    void *request = mh_ucp.ep_flush_nbx(lane->endpoint, &param);
    if (request == NULL || MH_PTR_IS_ERR(request)) {
        if (request == NULL)
            mc_lane_is_wired(lane);
        atomic_fetch_sub(&lane->pending, 1);
    }
}

static inline int mc_lane_wired(mc_lane *lane) { return atomic_load(&lane->wired); }

static inline size_t mc_lane_pending_bytes(mc_lane *lane) { return atomic_load(&lane->pending_bytes); }
/* Request a ROOM event when fewer than *limit* bytes are pending; returns whether they are already. */
static int mc_lane_has_room(mc_lane *lane, size_t limit) {
    atomic_store(&lane->room_below, limit);
    return atomic_load(&lane->pending_bytes) < limit;
}

static inline uint64_t mc_num_refused(mc_worker *worker) { return atomic_load(&worker->num_refused); }
static inline uint64_t mc_num_thread_wakes(mc_worker *worker) { return atomic_load(&worker->thread_wakes); }

/* Close the endpoint of *lane*, which is closing. */
static void mc_lane_disconnect(mc_lane *lane, uint32_t flags) {
    void *request = NULL;
    if (lane->endpoint) {
        mh_request_param_t param;
        param.op_attr_mask = MH_OP_ATTR_FIELD_CALLBACK | MH_OP_ATTR_FIELD_USER_DATA | MH_OP_ATTR_FIELD_FLAGS;
        param.flags = flags;
        param.cb.send = mc_on_closed;
        param.user_data = lane;
        request = mh_ucp.ep_close_nbx(lane->endpoint, &param);
        lane->endpoint = NULL;
    }
    if (request == NULL || MH_PTR_IS_ERR(request))
        mc_lane_closed(lane);
}

/* Close the endpoint of *lane* over tcp, which is closing, once UCX has sent what it holds, or has lost the peer.
 *
 * A forced close ends UCX's side of the connection with the peer's still open, and leaves it in its event loop as long
 * as it waits to send the rest. When the end of the peer's side arrives together with room to send, UCX frees the
 * connection for the first and uses it for the second: uct_tcp_iface_handle_events, in all versions up to 1.22. */
static void mc_lane_drain(mc_lane *lane) {
    mh_request_param_t param;
    param.op_attr_mask = MH_OP_ATTR_FIELD_CALLBACK | MH_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = mc_on_drained; /* comes here again, since UCX may have answered the peer meanwhile */
    param.user_data = lane;
    void *request = mh_ucp.ep_flush_nbx(lane->endpoint, &param);
    if (request == NULL || MH_PTR_IS_ERR(request))
        mc_lane_disconnect(lane, MH_EP_CLOSE_FLAG_FORCE);
}

/* Close *lane*: nothing is sent or delivered any more, and operations in flight end, most of them by failing. */
static void mc_lane_close(mc_lane *lane) {
    pthread_mutex_lock(&lane->lock); /* from here on its messages are refused and nothing is sent */
    atomic_store(&lane->state, MC_LANE_CLOSING);
    pthread_mutex_unlock(&lane->lock);
    int wired = atomic_load(&lane->wired);
    if (lane->endpoint && lane->over_sockets && wired)
        mc_lane_drain(lane);
    else
        mc_lane_disconnect(lane, wired ? MH_EP_CLOSE_FLAG_FORCE : 0);
}

/* ---- the end of a worker ----
 *
 * With the closing of an endpoint still in its queue, ucp_worker_destroy of 1.13 aborts the process. A peer that froze
 * while it was being connected, or over tcp while it was sent something, keeps such a request for as long as it likes,
 * so the wait is limited: see `Worker.close`. Messages to endpoints that were closed by force are another matter: 1.13
 * returns none of them while the shared memory queue of a dead peer is full, and ucp_worker_destroy then returns them
 * itself. */

/* Whether UCX still has the closing of an endpoint. */
static int mc_worker_closing(mc_worker *worker) {
    for (uint32_t i = 0; i < worker->num_lanes; i++)
        if (atomic_load(&worker->lanes[i]->state) == MC_LANE_CLOSING)
            return 1;
    return 0;
}

/* Whether UCX still has a request of ours. */
static int mc_worker_busy(mc_worker *worker) {
    if (atomic_load(&worker->operations) || mc_worker_closing(worker))
        return 1;
    for (uint32_t i = 0; i < worker->num_lanes; i++)
        if (atomic_load(&worker->lanes[i]->pending))
            return 1;
    return 0;
}

/* Close all lanes of *worker*, whose thread has ended, and progress until UCX has no request of ours, at most for
 * *patience_ns*; returns whether UCX can be destroyed. */
static int mc_worker_drain(mc_worker *worker, uint64_t patience_ns) {
    uint64_t end_ns = mc_now_ns() + patience_ns;
    if (!worker->ucp)
        return 1;
    for (uint32_t i = 0; i < worker->num_lanes; i++)
        if (atomic_load(&worker->lanes[i]->state) == MC_LANE_OPEN)
            mc_lane_close(worker->lanes[i]);
    while (mc_worker_busy(worker)) {
        mc_flush_dirty(worker);
        int moved = mh_ucp.worker_progress(worker->ucp) != 0;
        if (mc_now_ns() >= end_ns)
            return !mc_worker_closing(worker);
        /* A millisecond at most: not all work scheduled within UCX makes its descriptor readable. */
        struct pollfd fd = {worker->event_fd, POLLIN, 0};
        if (!moved && !atomic_load(&worker->dirty) && mh_ucp.worker_arm(worker->ucp) == MH_OK)
            poll(&fd, 1, 1);
    }
    return 1;
}

/* Destroy the UCX of *worker*, which `mc_worker_drain` has allowed; operations that UCX still had are done then. */
static void mc_worker_destroy(mc_worker *worker) {
    if (worker->ucp)
        mh_ucp.worker_destroy(worker->ucp);
    worker->ucp = NULL;
}

/* Free *worker*, whose UCX is destroyed. */
static void mc_worker_free(mc_worker *worker) {
    pthread_mutex_lock(&worker->away_lock);
    while (atomic_load(&worker->num_watching))
        pthread_cond_wait(&worker->away_changed, &worker->away_lock);
    pthread_mutex_unlock(&worker->away_lock);
    mc_take(worker);
    for (mc_event *event = mc_pop(worker); event; event = mc_pop(worker))
        mc_dispose(worker, event);
    for (uint32_t i = 0; i < worker->num_lanes; i++) {
        pthread_mutex_destroy(&worker->lanes[i]->lock);
        free(worker->lanes[i]->batch);
        free(worker->lanes[i]);
    }
    if (worker->context)
        mh_ucp.cleanup(worker->context);
    close(worker->kick_fd);
    close(worker->alarm_fd);
    pthread_mutex_destroy(&worker->events_lock);
    pthread_mutex_destroy(&worker->dirty_lock);
    pthread_mutex_destroy(&worker->away_lock);
    pthread_cond_destroy(&worker->away_changed);
    free(worker);
}

/* Cython sees callbacks as plain pointers. */
static inline void *mc_callback_small(void) { return (void *)mc_on_small; }
static inline void *mc_callback_bulk(void) { return (void *)mc_on_bulk; }
static inline void *mc_callback_error(void) { return (void *)mc_on_error; }
static inline void *mc_callback_sent(void) { return (void *)mc_on_sent; }
static inline void *mc_callback_piece(void) { return (void *)mc_on_piece; }
static inline void *mc_callback_received(void) { return (void *)mc_on_received; }

#endif
