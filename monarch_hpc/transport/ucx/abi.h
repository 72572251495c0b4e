/* Declarations of the part of UCX that the fast lane uses, so that no UCX header is needed to build.
 *
 * UCX keeps this binary interface stable: parameter structures grow at the end only, and a field mask
 * says which fields are set. A structure here ends where its oldest supported version does (or with the
 * last field we read); our masks never name fields that newer libraries have beyond that.
 *
 * Every name starts with mh_ or MH_, so that tests/ucx/abi_check.c includes this file and the real
 * <ucp/api/ucp.h> side by side and compares each size, offset, constant and function. What is MH_EP_PARAM_X
 * here is UCP_EP_PARAM_X there; what is mh_ep_params_t here is ucp_ep_params_t there.
 */
#ifndef MH_ABI_H
#define MH_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* The API version requested by mh_ucp.init_version; tested with 1.13.1, 1.15 and 1.22. */
#define MH_API_MAJOR 1
#define MH_API_MINOR 11

/* ---- status ---- */

/* A packed enum in UCX: one signed byte. The upper bytes of a returned register are undefined. */
typedef int8_t mh_status_t;
/* NULL: done at once. Otherwise an error (MH_PTR_IS_ERR) or a request in flight (MH_PTR_IS_PTR). */
typedef void *mh_status_ptr_t;

enum {
    MH_OK = 0,
    MH_INPROGRESS = 1,
    MH_ERR_NO_MESSAGE = -1,
    MH_ERR_NO_RESOURCE = -2,
    MH_ERR_IO_ERROR = -3,
    MH_ERR_NO_MEMORY = -4,
    MH_ERR_INVALID_PARAM = -5,
    MH_ERR_UNREACHABLE = -6,
    MH_ERR_INVALID_ADDR = -7,
    MH_ERR_NOT_IMPLEMENTED = -8,
    MH_ERR_MESSAGE_TRUNCATED = -9,
    MH_ERR_NO_PROGRESS = -10,
    MH_ERR_BUFFER_TOO_SMALL = -11,
    MH_ERR_NO_ELEM = -12,
    MH_ERR_SOME_CONNECTS_FAILED = -13,
    MH_ERR_NO_DEVICE = -14,
    MH_ERR_BUSY = -15,
    MH_ERR_CANCELED = -16,
    MH_ERR_SHMEM_SEGMENT = -17,
    MH_ERR_ALREADY_EXISTS = -18,
    MH_ERR_OUT_OF_RANGE = -19,
    MH_ERR_TIMED_OUT = -20,
    MH_ERR_EXCEEDS_LIMIT = -21,
    MH_ERR_UNSUPPORTED = -22,
    MH_ERR_REJECTED = -23,
    MH_ERR_NOT_CONNECTED = -24,
    MH_ERR_CONNECTION_RESET = -25,
    MH_ERR_ENDPOINT_TIMEOUT = -80,
    MH_ERR_LAST = -100
};

#define MH_PTR_IS_ERR(pointer) ((uintptr_t)(pointer) >= (uintptr_t)(intptr_t)MH_ERR_LAST)
#define MH_PTR_IS_PTR(pointer) ((uintptr_t)(pointer) - 1 < (uintptr_t)(intptr_t)MH_ERR_LAST - 1)
#define MH_PTR_STATUS(pointer) \
    (MH_PTR_IS_PTR(pointer) ? (mh_status_t)MH_INPROGRESS : (mh_status_t)(intptr_t)(pointer))

/* ---- handles ---- */

typedef struct mh_context *mh_context_h;
typedef struct mh_config mh_config_t;
typedef struct mh_worker *mh_worker_h;
typedef struct mh_address mh_address_t;
typedef struct mh_ep *mh_ep_h;
typedef struct mh_mem *mh_mem_h;
typedef struct mh_rkey *mh_rkey_h;
typedef struct mh_listener *mh_listener_h;
typedef struct mh_conn_request *mh_conn_request_h;
typedef uint64_t mh_datatype_t;

/* ---- enumerations, as the integers that parameters hold ---- */

enum { MH_THREAD_MODE_SINGLE = 0, MH_THREAD_MODE_SERIALIZED = 1, MH_THREAD_MODE_MULTI = 2 };
typedef unsigned mh_thread_mode_t;

/* The values that are the same in every version; later ones were renumbered. */
enum {
    MH_MEMORY_TYPE_HOST = 0,
    MH_MEMORY_TYPE_CUDA = 1,
    MH_MEMORY_TYPE_CUDA_MANAGED = 2,
    MH_MEMORY_TYPE_ROCM = 3,
    MH_MEMORY_TYPE_ROCM_MANAGED = 4
};
typedef unsigned mh_memory_type_t;

enum { MH_ERR_HANDLING_MODE_NONE = 0, MH_ERR_HANDLING_MODE_PEER = 1 };
typedef unsigned mh_err_handling_mode_t;

enum {
    MH_FEATURE_TAG = 1 << 0,
    MH_FEATURE_RMA = 1 << 1,
    MH_FEATURE_AMO32 = 1 << 2,
    MH_FEATURE_AMO64 = 1 << 3,
    MH_FEATURE_WAKEUP = 1 << 4,
    MH_FEATURE_STREAM = 1 << 5,
    MH_FEATURE_AM = 1 << 6
};

enum {
    MH_WAKEUP_RMA = 1 << 0,
    MH_WAKEUP_TX = 1 << 10,
    MH_WAKEUP_RX = 1 << 11,
    MH_WAKEUP_EDGE = 1 << 16
};

enum {
    MH_DATATYPE_CONTIG = 0,
    MH_DATATYPE_IOV = 2,
    MH_DATATYPE_SHIFT = 3
};
#define MH_DT_MAKE_CONTIG(size) (((mh_datatype_t)(size) << MH_DATATYPE_SHIFT) | MH_DATATYPE_CONTIG)

enum {
    MH_AM_SEND_FLAG_REPLY = 1 << 0,
    MH_AM_SEND_FLAG_EAGER = 1 << 1,
    MH_AM_SEND_FLAG_RNDV = 1 << 2
};
enum { MH_AM_FLAG_WHOLE_MSG = 1 << 0, MH_AM_FLAG_PERSISTENT_DATA = 1 << 1 };
enum {
    MH_AM_RECV_ATTR_FIELD_REPLY_EP = 1 << 0,
    MH_AM_RECV_ATTR_FLAG_DATA = 1 << 16,
    MH_AM_RECV_ATTR_FLAG_RNDV = 1 << 17
};
enum { MH_CB_PARAM_FLAG_DATA = 1 << 0 };
enum { MH_EP_CLOSE_FLAG_FORCE = 1 << 0 };
enum { MH_EP_PARAMS_FLAGS_CLIENT_SERVER = 1 << 0, MH_EP_PARAMS_FLAGS_NO_LOOPBACK = 1 << 1 };
enum { MH_MEM_MAP_NONBLOCK = 1 << 0, MH_MEM_MAP_ALLOCATE = 1 << 1, MH_MEM_MAP_FIXED = 1 << 2 };
enum {
    MH_MEM_MAP_PROT_LOCAL_READ = 1 << 0,
    MH_MEM_MAP_PROT_LOCAL_WRITE = 1 << 1,
    MH_MEM_MAP_PROT_REMOTE_READ = 1 << 8,
    MH_MEM_MAP_PROT_REMOTE_WRITE = 1 << 9
};

/* ---- callbacks: X(result, name, arguments) ---- */

typedef struct mh_am_recv_param {
    uint64_t recv_attr;
    mh_ep_h reply_ep;
} mh_am_recv_param_t;

#define MH_CALLBACKS(X) \
    X(void, send_nbx_callback_t, (void *request, mh_status_t status, void *user_data)) \
    X(void, am_recv_data_nbx_callback_t, (void *request, mh_status_t status, size_t length, void *user_data)) \
    X(mh_status_t, am_recv_callback_t, \
      (void *arg, const void *header, size_t header_length, void *data, size_t length, \
       const mh_am_recv_param_t *param)) \
    X(void, err_handler_cb_t, (void *arg, mh_ep_h ep, mh_status_t status)) \
    X(void, listener_conn_callback_t, (mh_conn_request_h conn_request, void *arg))

#define MH_DECLARE_CALLBACK(result, name, arguments) typedef result(*mh_##name) arguments;
MH_CALLBACKS(MH_DECLARE_CALLBACK)
#undef MH_DECLARE_CALLBACK

/* ---- parameter structures ---- */

enum {
    MH_PARAM_FIELD_FEATURES = 1 << 0,
    MH_PARAM_FIELD_REQUEST_SIZE = 1 << 1,
    MH_PARAM_FIELD_MT_WORKERS_SHARED = 1 << 5,
    MH_PARAM_FIELD_ESTIMATED_NUM_EPS = 1 << 6,
    MH_PARAM_FIELD_ESTIMATED_NUM_PPN = 1 << 7,
    MH_PARAM_FIELD_NAME = 1 << 8
};
typedef struct mh_params {
    uint64_t field_mask;
    uint64_t features;
    size_t request_size;
    void (*request_init)(void *request);
    void (*request_cleanup)(void *request);
    uint64_t tag_sender_mask;
    int mt_workers_shared;
    size_t estimated_num_eps;
    size_t estimated_num_ppn;
    const char *name;
} mh_params_t;

#define MH_ENTITY_NAME_MAX 32

enum {
    MH_ATTR_FIELD_REQUEST_SIZE = 1 << 0,
    MH_ATTR_FIELD_THREAD_MODE = 1 << 1,
    MH_ATTR_FIELD_MEMORY_TYPES = 1 << 2
};
typedef struct mh_context_attr {
    uint64_t field_mask;
    size_t request_size;
    mh_thread_mode_t thread_mode;
    uint64_t memory_types;
    char name[MH_ENTITY_NAME_MAX];
} mh_context_attr_t;

enum {
    MH_WORKER_PARAM_FIELD_THREAD_MODE = 1 << 0,
    MH_WORKER_PARAM_FIELD_EVENTS = 1 << 2,
    MH_WORKER_PARAM_FIELD_USER_DATA = 1 << 3,
    MH_WORKER_PARAM_FIELD_EVENT_FD = 1 << 4,
    MH_WORKER_PARAM_FIELD_FLAGS = 1 << 5,
    MH_WORKER_PARAM_FIELD_NAME = 1 << 6,
    MH_WORKER_PARAM_FIELD_AM_ALIGNMENT = 1 << 7
};
typedef struct mh_worker_params {
    uint64_t field_mask;
    mh_thread_mode_t thread_mode;
    unsigned long cpu_mask[1024 / (8 * sizeof(unsigned long))];
    unsigned events;
    void *user_data;
    int event_fd;
    uint64_t flags;
    const char *name;
    size_t am_alignment;
    uint64_t client_id;
} mh_worker_params_t;

enum {
    MH_WORKER_ATTR_FIELD_THREAD_MODE = 1 << 0,
    MH_WORKER_ATTR_FIELD_ADDRESS = 1 << 1,
    MH_WORKER_ATTR_FIELD_ADDRESS_FLAGS = 1 << 2,
    MH_WORKER_ATTR_FIELD_MAX_AM_HEADER = 1 << 3
};
enum { MH_WORKER_ADDRESS_FLAG_NET_ONLY = 1 << 0 };
typedef struct mh_worker_attr {
    uint64_t field_mask;
    mh_thread_mode_t thread_mode;
    uint32_t address_flags;
    mh_address_t *address;
    size_t address_length;
    size_t max_am_header;
    char name[MH_ENTITY_NAME_MAX];
    size_t max_debug_string;
} mh_worker_attr_t;

enum {
    MH_AM_HANDLER_PARAM_FIELD_ID = 1 << 0,
    MH_AM_HANDLER_PARAM_FIELD_FLAGS = 1 << 1,
    MH_AM_HANDLER_PARAM_FIELD_CB = 1 << 2,
    MH_AM_HANDLER_PARAM_FIELD_ARG = 1 << 3
};
typedef struct mh_am_handler_param {
    uint64_t field_mask;
    unsigned id;
    uint32_t flags;
    mh_am_recv_callback_t cb;
    void *arg;
} mh_am_handler_param_t;

typedef struct mh_sock_addr {
    const struct sockaddr *addr;
    socklen_t addrlen;
} mh_sock_addr_t;

typedef struct mh_err_handler {
    mh_err_handler_cb_t cb;
    void *arg;
} mh_err_handler_t;

enum {
    MH_EP_PARAM_FIELD_REMOTE_ADDRESS = 1 << 0,
    MH_EP_PARAM_FIELD_ERR_HANDLING_MODE = 1 << 1,
    MH_EP_PARAM_FIELD_ERR_HANDLER = 1 << 2,
    MH_EP_PARAM_FIELD_USER_DATA = 1 << 3,
    MH_EP_PARAM_FIELD_SOCK_ADDR = 1 << 4,
    MH_EP_PARAM_FIELD_FLAGS = 1 << 5,
    MH_EP_PARAM_FIELD_CONN_REQUEST = 1 << 6,
    MH_EP_PARAM_FIELD_NAME = 1 << 7
};
typedef struct mh_ep_params {
    uint64_t field_mask;
    const mh_address_t *address;
    mh_err_handling_mode_t err_mode;
    mh_err_handler_t err_handler;
    void *user_data;
    unsigned flags;
    mh_sock_addr_t sockaddr;
    mh_conn_request_h conn_request;
    const char *name;
    mh_sock_addr_t local_sockaddr;
} mh_ep_params_t;

/* Newer than 1.13. An older library leaves `transports` unchanged: pass zeroed entries, and treat an
 * entry without a name as unknown. num_entries is the capacity on input, and the count on output. */
typedef struct mh_transport_entry {
    const char *transport_name;
    const char *device_name;
} mh_transport_entry_t;
typedef struct mh_transports {
    mh_transport_entry_t *entries;
    unsigned num_entries;
    size_t entry_size;
} mh_transports_t;

enum {
    MH_EP_ATTR_FIELD_NAME = 1 << 0,
    MH_EP_ATTR_FIELD_LOCAL_SOCKADDR = 1 << 1,
    MH_EP_ATTR_FIELD_REMOTE_SOCKADDR = 1 << 2,
    MH_EP_ATTR_FIELD_TRANSPORTS = 1 << 3
};
typedef struct mh_ep_attr {
    uint64_t field_mask;
    char name[MH_ENTITY_NAME_MAX];
    struct sockaddr_storage local_sockaddr;
    struct sockaddr_storage remote_sockaddr;
    mh_transports_t transports;
} mh_ep_attr_t;

enum {
    MH_OP_ATTR_FIELD_REQUEST = 1 << 0,
    MH_OP_ATTR_FIELD_CALLBACK = 1 << 1,
    MH_OP_ATTR_FIELD_USER_DATA = 1 << 2,
    MH_OP_ATTR_FIELD_DATATYPE = 1 << 3,
    MH_OP_ATTR_FIELD_FLAGS = 1 << 4,
    MH_OP_ATTR_FIELD_REPLY_BUFFER = 1 << 5,
    MH_OP_ATTR_FIELD_MEMORY_TYPE = 1 << 6,
    MH_OP_ATTR_FIELD_RECV_INFO = 1 << 7,
    MH_OP_ATTR_FIELD_MEMH = 1 << 8,
    MH_OP_ATTR_FLAG_NO_IMM_CMPL = 1 << 16,
    MH_OP_ATTR_FLAG_FAST_CMPL = 1 << 17,
    MH_OP_ATTR_FLAG_FORCE_IMM_CMPL = 1 << 18,
    MH_OP_ATTR_FLAG_MULTI_SEND = 1 << 19
};
typedef struct mh_request_param {
    uint32_t op_attr_mask;
    uint32_t flags;
    void *request;
    union {
        mh_send_nbx_callback_t send;
        mh_am_recv_data_nbx_callback_t recv_am;
    } cb;
    mh_datatype_t datatype;
    void *user_data;
    void *reply_buffer;
    mh_memory_type_t memory_type;
    union {
        size_t *length;
    } recv_info;
    mh_mem_h memh;
} mh_request_param_t;

typedef struct mh_dt_iov {
    void *buffer;
    size_t length;
} mh_dt_iov_t;

typedef struct mh_generic_dt_ops {
    void *(*start_pack)(void *context, const void *buffer, size_t count);
    void *(*start_unpack)(void *context, void *buffer, size_t count);
    size_t (*packed_size)(void *state);
    size_t (*pack)(void *state, size_t offset, void *dest, size_t max_length);
    mh_status_t (*unpack)(void *state, size_t offset, const void *src, size_t length);
    void (*finish)(void *state);
} mh_generic_dt_ops_t;

enum {
    MH_MEM_MAP_PARAM_FIELD_ADDRESS = 1 << 0,
    MH_MEM_MAP_PARAM_FIELD_LENGTH = 1 << 1,
    MH_MEM_MAP_PARAM_FIELD_FLAGS = 1 << 2,
    MH_MEM_MAP_PARAM_FIELD_PROT = 1 << 3,
    MH_MEM_MAP_PARAM_FIELD_MEMORY_TYPE = 1 << 4
};
typedef struct mh_mem_map_params {
    uint64_t field_mask;
    void *address;
    size_t length;
    unsigned flags;
    unsigned prot;
    mh_memory_type_t memory_type;
} mh_mem_map_params_t;

enum {
    MH_MEM_ATTR_FIELD_ADDRESS = 1 << 0,
    MH_MEM_ATTR_FIELD_LENGTH = 1 << 1,
    MH_MEM_ATTR_FIELD_MEM_TYPE = 1 << 2
};
typedef struct mh_mem_attr {
    uint64_t field_mask;
    void *address;
    size_t length;
    mh_memory_type_t mem_type;
} mh_mem_attr_t;

typedef struct mh_listener_accept_handler {
    void (*cb)(mh_ep_h ep, void *arg);
    void *arg;
} mh_listener_accept_handler_t;
typedef struct mh_listener_conn_handler {
    mh_listener_conn_callback_t cb;
    void *arg;
} mh_listener_conn_handler_t;

enum {
    MH_LISTENER_PARAM_FIELD_SOCK_ADDR = 1 << 0,
    MH_LISTENER_PARAM_FIELD_CONN_HANDLER = 1 << 2
};
typedef struct mh_listener_params {
    uint64_t field_mask;
    mh_sock_addr_t sockaddr;
    mh_listener_accept_handler_t accept_handler;
    mh_listener_conn_handler_t conn_handler;
} mh_listener_params_t;

enum { MH_LISTENER_ATTR_FIELD_SOCKADDR = 1 << 0 };
typedef struct mh_listener_attr {
    uint64_t field_mask;
    struct sockaddr_storage sockaddr;
} mh_listener_attr_t;

enum { MH_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR = 1 << 0 };
typedef struct mh_conn_request_attr {
    uint64_t field_mask;
    struct sockaddr_storage client_address;
    uint64_t client_id;
} mh_conn_request_attr_t;

/* ---- functions: X(result, name, arguments); the library calls them ucp_NAME ---- */

#define MH_FUNCTIONS(X) \
    X(void, get_version, (unsigned *major, unsigned *minor, unsigned *release)) \
    X(const char *, get_version_string, (void)) \
    X(mh_status_t, config_read, (const char *env_prefix, const char *filename, mh_config_t **config)) \
    X(mh_status_t, config_modify, (mh_config_t * config, const char *name, const char *value)) \
    X(void, config_release, (mh_config_t * config)) \
    X(mh_status_t, init_version, \
      (unsigned api_major, unsigned api_minor, const mh_params_t *params, const mh_config_t *config, \
       mh_context_h *context)) \
    X(void, cleanup, (mh_context_h context)) \
    X(mh_status_t, context_query, (mh_context_h context, mh_context_attr_t *attr)) \
    X(mh_status_t, worker_create, (mh_context_h context, const mh_worker_params_t *params, mh_worker_h *worker)) \
    X(void, worker_destroy, (mh_worker_h worker)) \
    X(mh_status_t, worker_query, (mh_worker_h worker, mh_worker_attr_t *attr)) \
    X(mh_status_t, worker_get_address, (mh_worker_h worker, mh_address_t **address, size_t *length)) \
    X(void, worker_release_address, (mh_worker_h worker, mh_address_t *address)) \
    X(mh_status_t, worker_get_efd, (mh_worker_h worker, int *fd)) \
    X(mh_status_t, worker_arm, (mh_worker_h worker)) \
    X(mh_status_t, worker_signal, (mh_worker_h worker)) \
    X(unsigned, worker_progress, (mh_worker_h worker)) \
    X(mh_status_t, worker_fence, (mh_worker_h worker)) \
    X(mh_status_ptr_t, worker_flush_nbx, (mh_worker_h worker, const mh_request_param_t *param)) \
    X(mh_status_t, worker_set_am_recv_handler, (mh_worker_h worker, const mh_am_handler_param_t *param)) \
    X(mh_status_t, ep_create, (mh_worker_h worker, const mh_ep_params_t *params, mh_ep_h *ep)) \
    X(mh_status_ptr_t, ep_close_nbx, (mh_ep_h ep, const mh_request_param_t *param)) \
    X(mh_status_ptr_t, ep_flush_nbx, (mh_ep_h ep, const mh_request_param_t *param)) \
    X(mh_status_ptr_t, am_send_nbx, \
      (mh_ep_h ep, unsigned id, const void *header, size_t header_length, const void *buffer, size_t count, \
       const mh_request_param_t *param)) \
    X(mh_status_ptr_t, am_recv_data_nbx, \
      (mh_worker_h worker, void *data_desc, void *buffer, size_t count, const mh_request_param_t *param)) \
    X(void, am_data_release, (mh_worker_h worker, void *data)) \
    X(mh_status_t, dt_create_generic, (const mh_generic_dt_ops_t *ops, void *context, mh_datatype_t *datatype)) \
    X(mh_status_t, mem_map, (mh_context_h context, const mh_mem_map_params_t *params, mh_mem_h *memh)) \
    X(mh_status_t, mem_unmap, (mh_context_h context, mh_mem_h memh)) \
    X(mh_status_t, mem_query, (const mh_mem_h memh, mh_mem_attr_t *attr)) \
    X(mh_status_t, rkey_pack, (mh_context_h context, mh_mem_h memh, void **buffer, size_t *size)) \
    X(void, rkey_buffer_release, (void *buffer)) \
    X(mh_status_t, ep_rkey_unpack, (mh_ep_h ep, const void *buffer, mh_rkey_h *rkey)) \
    X(void, rkey_destroy, (mh_rkey_h rkey)) \
    X(mh_status_ptr_t, put_nbx, \
      (mh_ep_h ep, const void *buffer, size_t count, uint64_t remote_address, mh_rkey_h rkey, \
       const mh_request_param_t *param)) \
    X(mh_status_ptr_t, get_nbx, \
      (mh_ep_h ep, void *buffer, size_t count, uint64_t remote_address, mh_rkey_h rkey, \
       const mh_request_param_t *param)) \
    X(void, request_free, (void *request)) \
    X(mh_status_t, request_check_status, (void *request)) \
    X(void, request_cancel, (mh_worker_h worker, void *request)) \
    X(mh_status_t, listener_create, \
      (mh_worker_h worker, const mh_listener_params_t *params, mh_listener_h *listener)) \
    X(mh_status_t, listener_query, (mh_listener_h listener, mh_listener_attr_t *attr)) \
    X(void, listener_destroy, (mh_listener_h listener)) \
    X(mh_status_t, listener_reject, (mh_listener_h listener, mh_conn_request_h conn_request)) \
    X(mh_status_t, conn_request_query, (mh_conn_request_h conn_request, mh_conn_request_attr_t *attr))

/* Functions that a supported library may lack: NULL then, so test before use. */
#define MH_OPTIONAL_FUNCTIONS(X) \
    X(mh_status_t, ep_query, (mh_ep_h ep, mh_ep_attr_t *attr))

#endif
