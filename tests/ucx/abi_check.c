/* Compares our declarations with UCX's own headers; it has passed when it compiles. */
#include <ucp/api/ucp.h>

#include "abi.h"

#define CONSTANT(name, theirs) _Static_assert((long long)MH_##name == (long long)theirs, #name);
#define UCP(name) CONSTANT(name, UCP_##name)
#define UCS(name) CONSTANT(name, UCS_##name)
#define TYPE_SIZE(name, theirs) _Static_assert(sizeof(mh_##name) == sizeof(theirs), #name);
#define HANDLE(name) TYPE_SIZE(name, ucp_##name)
/* A field at the same place, of the same size. */
#define FIELD(type, field) \
    _Static_assert(offsetof(mh_##type, field) == offsetof(ucp_##type, field), #type "." #field); \
    _Static_assert(sizeof(((mh_##type *)0)->field) == sizeof(((ucp_##type *)0)->field), #type "." #field);
/* A structure that has not grown, and one that newer versions made longer. */
#define FIXED(type) TYPE_SIZE(type, ucp_##type)
#define GROWN(type) _Static_assert(sizeof(mh_##type) <= sizeof(ucp_##type), #type);

_Static_assert(UCP_API_VERSION >= UCP_VERSION(MH_API_MAJOR, MH_API_MINOR), "headers older than what we ask for");

/* ---- status ---- */
TYPE_SIZE(status_t, ucs_status_t)
TYPE_SIZE(status_ptr_t, ucs_status_ptr_t)
_Static_assert((mh_status_t)-1 < 0 && (ucs_status_t)-1 < 0, "a status is signed");
UCS(OK)
UCS(INPROGRESS)
UCS(ERR_NO_MESSAGE)
UCS(ERR_NO_RESOURCE)
UCS(ERR_IO_ERROR)
UCS(ERR_NO_MEMORY)
UCS(ERR_INVALID_PARAM)
UCS(ERR_UNREACHABLE)
UCS(ERR_INVALID_ADDR)
UCS(ERR_NOT_IMPLEMENTED)
UCS(ERR_MESSAGE_TRUNCATED)
UCS(ERR_NO_PROGRESS)
UCS(ERR_BUFFER_TOO_SMALL)
UCS(ERR_NO_ELEM)
UCS(ERR_SOME_CONNECTS_FAILED)
UCS(ERR_NO_DEVICE)
UCS(ERR_BUSY)
UCS(ERR_CANCELED)
UCS(ERR_SHMEM_SEGMENT)
UCS(ERR_ALREADY_EXISTS)
UCS(ERR_OUT_OF_RANGE)
UCS(ERR_TIMED_OUT)
UCS(ERR_EXCEEDS_LIMIT)
UCS(ERR_UNSUPPORTED)
UCS(ERR_REJECTED)
UCS(ERR_NOT_CONNECTED)
UCS(ERR_CONNECTION_RESET)
UCS(ERR_ENDPOINT_TIMEOUT)
UCS(ERR_LAST)

/* The first and last value of each of the three kinds that a status pointer has. */
#define POINTER(value) \
    _Static_assert(MH_PTR_IS_ERR((uintptr_t)(value)) == UCS_PTR_IS_ERR((uintptr_t)(value)), #value); \
    _Static_assert(MH_PTR_IS_PTR((uintptr_t)(value)) == UCS_PTR_IS_PTR((uintptr_t)(value)), #value); \
    _Static_assert(MH_PTR_STATUS((uintptr_t)(value)) == (mh_status_t)UCS_PTR_STATUS((uintptr_t)(value)), #value);
POINTER(0)
POINTER(1)
POINTER(4096)
POINTER(-101)
POINTER(-100)
POINTER(-1)

/* ---- handles and enumerations ---- */
HANDLE(context_h)
HANDLE(worker_h)
HANDLE(ep_h)
HANDLE(mem_h)
HANDLE(rkey_h)
HANDLE(listener_h)
HANDLE(conn_request_h)
HANDLE(datatype_t)
HANDLE(err_handling_mode_t)
TYPE_SIZE(thread_mode_t, ucs_thread_mode_t)
TYPE_SIZE(memory_type_t, ucs_memory_type_t)
UCS(THREAD_MODE_SINGLE)
UCS(THREAD_MODE_SERIALIZED)
UCS(THREAD_MODE_MULTI)
UCS(MEMORY_TYPE_HOST)
UCS(MEMORY_TYPE_CUDA)
UCS(MEMORY_TYPE_CUDA_MANAGED)
UCS(MEMORY_TYPE_ROCM)
UCS(MEMORY_TYPE_ROCM_MANAGED)
UCP(ERR_HANDLING_MODE_NONE)
UCP(ERR_HANDLING_MODE_PEER)
UCP(FEATURE_TAG)
UCP(FEATURE_RMA)
UCP(FEATURE_AMO32)
UCP(FEATURE_AMO64)
UCP(FEATURE_WAKEUP)
UCP(FEATURE_STREAM)
UCP(FEATURE_AM)
UCP(WAKEUP_RMA)
UCP(WAKEUP_TX)
UCP(WAKEUP_RX)
UCP(WAKEUP_EDGE)
UCP(DATATYPE_CONTIG)
UCP(DATATYPE_IOV)
UCP(DATATYPE_SHIFT)
_Static_assert(MH_DT_MAKE_CONTIG(8) == ucp_dt_make_contig(8), "contiguous data");
UCP(AM_SEND_FLAG_REPLY)
UCP(AM_SEND_FLAG_EAGER)
UCP(AM_SEND_FLAG_RNDV)
UCP(AM_FLAG_WHOLE_MSG)
UCP(AM_FLAG_PERSISTENT_DATA)
UCP(AM_RECV_ATTR_FIELD_REPLY_EP)
UCP(AM_RECV_ATTR_FLAG_DATA)
UCP(AM_RECV_ATTR_FLAG_RNDV)
UCP(CB_PARAM_FLAG_DATA)
UCP(EP_CLOSE_FLAG_FORCE)
UCP(EP_PARAMS_FLAGS_CLIENT_SERVER)
UCP(EP_PARAMS_FLAGS_NO_LOOPBACK)
UCP(MEM_MAP_NONBLOCK)
UCP(MEM_MAP_ALLOCATE)
UCP(MEM_MAP_FIXED)
UCP(MEM_MAP_PROT_LOCAL_READ)
UCP(MEM_MAP_PROT_LOCAL_WRITE)
UCP(MEM_MAP_PROT_REMOTE_READ)
UCP(MEM_MAP_PROT_REMOTE_WRITE)
UCP(ENTITY_NAME_MAX)

/* ---- structures ---- */
UCP(PARAM_FIELD_FEATURES)
UCP(PARAM_FIELD_REQUEST_SIZE)
UCP(PARAM_FIELD_MT_WORKERS_SHARED)
UCP(PARAM_FIELD_ESTIMATED_NUM_EPS)
UCP(PARAM_FIELD_ESTIMATED_NUM_PPN)
UCP(PARAM_FIELD_NAME)
GROWN(params_t)
FIELD(params_t, field_mask)
FIELD(params_t, features)
FIELD(params_t, request_size)
FIELD(params_t, request_init)
FIELD(params_t, request_cleanup)
FIELD(params_t, tag_sender_mask)
FIELD(params_t, mt_workers_shared)
FIELD(params_t, estimated_num_eps)
FIELD(params_t, estimated_num_ppn)
FIELD(params_t, name)

UCP(ATTR_FIELD_REQUEST_SIZE)
UCP(ATTR_FIELD_THREAD_MODE)
UCP(ATTR_FIELD_MEMORY_TYPES)
GROWN(context_attr_t)
FIELD(context_attr_t, field_mask)
FIELD(context_attr_t, request_size)
FIELD(context_attr_t, thread_mode)
FIELD(context_attr_t, memory_types)
FIELD(context_attr_t, name)

UCP(WORKER_PARAM_FIELD_THREAD_MODE)
UCP(WORKER_PARAM_FIELD_EVENTS)
UCP(WORKER_PARAM_FIELD_USER_DATA)
UCP(WORKER_PARAM_FIELD_EVENT_FD)
UCP(WORKER_PARAM_FIELD_FLAGS)
UCP(WORKER_PARAM_FIELD_NAME)
UCP(WORKER_PARAM_FIELD_AM_ALIGNMENT)
FIXED(worker_params_t)
FIELD(worker_params_t, field_mask)
FIELD(worker_params_t, thread_mode)
FIELD(worker_params_t, cpu_mask)
FIELD(worker_params_t, events)
FIELD(worker_params_t, user_data)
FIELD(worker_params_t, event_fd)
FIELD(worker_params_t, flags)
FIELD(worker_params_t, name)
FIELD(worker_params_t, am_alignment)
FIELD(worker_params_t, client_id)

UCP(WORKER_ATTR_FIELD_THREAD_MODE)
UCP(WORKER_ATTR_FIELD_ADDRESS)
UCP(WORKER_ATTR_FIELD_ADDRESS_FLAGS)
UCP(WORKER_ATTR_FIELD_MAX_AM_HEADER)
UCP(WORKER_ADDRESS_FLAG_NET_ONLY)
FIXED(worker_attr_t)
FIELD(worker_attr_t, field_mask)
FIELD(worker_attr_t, thread_mode)
FIELD(worker_attr_t, address_flags)
FIELD(worker_attr_t, address)
FIELD(worker_attr_t, address_length)
FIELD(worker_attr_t, max_am_header)
FIELD(worker_attr_t, name)
FIELD(worker_attr_t, max_debug_string)

UCP(AM_HANDLER_PARAM_FIELD_ID)
UCP(AM_HANDLER_PARAM_FIELD_FLAGS)
UCP(AM_HANDLER_PARAM_FIELD_CB)
UCP(AM_HANDLER_PARAM_FIELD_ARG)
FIXED(am_handler_param_t)
FIELD(am_handler_param_t, field_mask)
FIELD(am_handler_param_t, id)
FIELD(am_handler_param_t, flags)
FIELD(am_handler_param_t, cb)
FIELD(am_handler_param_t, arg)
GROWN(am_recv_param_t)
FIELD(am_recv_param_t, recv_attr)
FIELD(am_recv_param_t, reply_ep)

TYPE_SIZE(sock_addr_t, ucs_sock_addr_t)
_Static_assert(offsetof(mh_sock_addr_t, addr) == offsetof(ucs_sock_addr_t, addr), "sock_addr_t.addr");
_Static_assert(offsetof(mh_sock_addr_t, addrlen) == offsetof(ucs_sock_addr_t, addrlen), "sock_addr_t.addrlen");
FIXED(err_handler_t)
FIELD(err_handler_t, cb)
FIELD(err_handler_t, arg)
UCP(EP_PARAM_FIELD_REMOTE_ADDRESS)
UCP(EP_PARAM_FIELD_ERR_HANDLING_MODE)
UCP(EP_PARAM_FIELD_ERR_HANDLER)
UCP(EP_PARAM_FIELD_USER_DATA)
UCP(EP_PARAM_FIELD_SOCK_ADDR)
UCP(EP_PARAM_FIELD_FLAGS)
UCP(EP_PARAM_FIELD_CONN_REQUEST)
UCP(EP_PARAM_FIELD_NAME)
GROWN(ep_params_t)
FIELD(ep_params_t, field_mask)
FIELD(ep_params_t, address)
FIELD(ep_params_t, err_mode)
FIELD(ep_params_t, err_handler)
FIELD(ep_params_t, user_data)
FIELD(ep_params_t, flags)
FIELD(ep_params_t, sockaddr)
FIELD(ep_params_t, conn_request)
FIELD(ep_params_t, name)
FIELD(ep_params_t, local_sockaddr)

UCP(EP_ATTR_FIELD_NAME)
UCP(EP_ATTR_FIELD_LOCAL_SOCKADDR)
UCP(EP_ATTR_FIELD_REMOTE_SOCKADDR)
FIELD(ep_attr_t, field_mask)
FIELD(ep_attr_t, name)
FIELD(ep_attr_t, local_sockaddr)
FIELD(ep_attr_t, remote_sockaddr)
#if UCP_API_VERSION >= UCP_VERSION(1, 15)
UCP(EP_ATTR_FIELD_TRANSPORTS)
GROWN(ep_attr_t)
FIELD(ep_attr_t, transports)
FIXED(transports_t)
FIELD(transports_t, entries)
FIELD(transports_t, num_entries)
FIELD(transports_t, entry_size)
FIXED(transport_entry_t)
FIELD(transport_entry_t, transport_name)
FIELD(transport_entry_t, device_name)
#endif

UCP(OP_ATTR_FIELD_REQUEST)
UCP(OP_ATTR_FIELD_CALLBACK)
UCP(OP_ATTR_FIELD_USER_DATA)
UCP(OP_ATTR_FIELD_DATATYPE)
UCP(OP_ATTR_FIELD_FLAGS)
UCP(OP_ATTR_FIELD_REPLY_BUFFER)
UCP(OP_ATTR_FIELD_MEMORY_TYPE)
UCP(OP_ATTR_FIELD_RECV_INFO)
UCP(OP_ATTR_FIELD_MEMH)
UCP(OP_ATTR_FLAG_NO_IMM_CMPL)
UCP(OP_ATTR_FLAG_FAST_CMPL)
UCP(OP_ATTR_FLAG_FORCE_IMM_CMPL)
UCP(OP_ATTR_FLAG_MULTI_SEND)
GROWN(request_param_t)
FIELD(request_param_t, op_attr_mask)
FIELD(request_param_t, flags)
FIELD(request_param_t, request)
FIELD(request_param_t, cb)
FIELD(request_param_t, cb.send)
FIELD(request_param_t, cb.recv_am)
FIELD(request_param_t, datatype)
FIELD(request_param_t, user_data)
FIELD(request_param_t, reply_buffer)
FIELD(request_param_t, memory_type)
FIELD(request_param_t, recv_info)
FIELD(request_param_t, memh)
FIXED(dt_iov_t)
FIELD(dt_iov_t, buffer)
FIELD(dt_iov_t, length)
FIXED(generic_dt_ops_t)
FIELD(generic_dt_ops_t, start_pack)
FIELD(generic_dt_ops_t, start_unpack)
FIELD(generic_dt_ops_t, packed_size)
FIELD(generic_dt_ops_t, pack)
FIELD(generic_dt_ops_t, unpack)
FIELD(generic_dt_ops_t, finish)

UCP(MEM_MAP_PARAM_FIELD_ADDRESS)
UCP(MEM_MAP_PARAM_FIELD_LENGTH)
UCP(MEM_MAP_PARAM_FIELD_FLAGS)
UCP(MEM_MAP_PARAM_FIELD_PROT)
UCP(MEM_MAP_PARAM_FIELD_MEMORY_TYPE)
GROWN(mem_map_params_t)
FIELD(mem_map_params_t, field_mask)
FIELD(mem_map_params_t, address)
FIELD(mem_map_params_t, length)
FIELD(mem_map_params_t, flags)
FIELD(mem_map_params_t, prot)
FIELD(mem_map_params_t, memory_type)
UCP(MEM_ATTR_FIELD_ADDRESS)
UCP(MEM_ATTR_FIELD_LENGTH)
UCP(MEM_ATTR_FIELD_MEM_TYPE)
FIXED(mem_attr_t)
FIELD(mem_attr_t, field_mask)
FIELD(mem_attr_t, address)
FIELD(mem_attr_t, length)
FIELD(mem_attr_t, mem_type)

UCP(LISTENER_PARAM_FIELD_SOCK_ADDR)
UCP(LISTENER_PARAM_FIELD_CONN_HANDLER)
FIXED(listener_params_t)
FIELD(listener_params_t, field_mask)
FIELD(listener_params_t, sockaddr)
FIELD(listener_params_t, accept_handler)
FIELD(listener_params_t, conn_handler)
FIXED(listener_accept_handler_t)
FIELD(listener_accept_handler_t, cb)
FIELD(listener_accept_handler_t, arg)
FIXED(listener_conn_handler_t)
FIELD(listener_conn_handler_t, cb)
FIELD(listener_conn_handler_t, arg)
UCP(LISTENER_ATTR_FIELD_SOCKADDR)
GROWN(listener_attr_t)
FIELD(listener_attr_t, field_mask)
FIELD(listener_attr_t, sockaddr)
UCP(CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR)
FIXED(conn_request_attr_t)
FIELD(conn_request_attr_t, field_mask)
FIELD(conn_request_attr_t, client_address)
FIELD(conn_request_attr_t, client_id)

/* ---- functions and callbacks: ours, said with UCX's types, are UCX's or the compiler stops ---- */
#define mh_status_t ucs_status_t
#define mh_status_ptr_t ucs_status_ptr_t
#define mh_context_h ucp_context_h
#define mh_config_t ucp_config_t
#define mh_worker_h ucp_worker_h
#define mh_address_t ucp_address_t
#define mh_ep_h ucp_ep_h
#define mh_mem_h ucp_mem_h
#define mh_rkey_h ucp_rkey_h
#define mh_listener_h ucp_listener_h
#define mh_conn_request_h ucp_conn_request_h
#define mh_params_t ucp_params_t
#define mh_context_attr_t ucp_context_attr_t
#define mh_worker_params_t ucp_worker_params_t
#define mh_worker_attr_t ucp_worker_attr_t
#define mh_am_handler_param_t ucp_am_handler_param_t
#define mh_am_recv_param_t ucp_am_recv_param_t
#define mh_ep_params_t ucp_ep_params_t
#define mh_ep_attr_t ucp_ep_attr_t
#define mh_request_param_t ucp_request_param_t
#define mh_mem_map_params_t ucp_mem_map_params_t
#define mh_mem_attr_t ucp_mem_attr_t
#define mh_generic_dt_ops_t ucp_generic_dt_ops_t
#define mh_listener_params_t ucp_listener_params_t
#define mh_listener_attr_t ucp_listener_attr_t
#define mh_conn_request_attr_t ucp_conn_request_attr_t

#define FUNCTION(result, name, arguments) \
    _Static_assert(__builtin_types_compatible_p(result(*) arguments, __typeof__(&ucp_##name)), #name);
MH_FUNCTIONS(FUNCTION)
MH_OPTIONAL_FUNCTIONS(FUNCTION)
_Static_assert(
    __builtin_types_compatible_p(const char *(*)(mh_status_t), __typeof__(&ucs_status_string)), "status_string");

#define CALLBACK(result, name, arguments) \
    _Static_assert(__builtin_types_compatible_p(result(*) arguments, ucp_##name), #name);
MH_CALLBACKS(CALLBACK)
