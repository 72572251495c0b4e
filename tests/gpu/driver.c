/* A CUDA driver without a GPU, as far as monarch_hpc.core.machine.cuda calls it, and stricter than NVIDIA's.
 *
 * Memory of its two devices is a file that this host's code cannot touch: reading or writing an address ends the
 * process. Copies are done when their stream is synchronized, and not before. A call without a current context fails.
 * Handles open the memory in other processes, as those of CUDA do; memory of `cuStubAllocPooled` has none. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, DEVICES = 2, DEPTH = 8, MOST = 4096 };

struct memory { uint64_t base, size; int fd, device, pooled, opened; };
struct work { uint64_t into, data; size_t size; int value; struct work *next; };
struct stream { int device; struct work *first; };

static struct memory memories[MOST];
static struct stream default_streams[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int current[DEPTH], depth; /* devices whose contexts are current, the last on top */
static int num_holders;                    /* threads with a current context */

static int device_now(void) { return depth ? current[depth - 1] : -1; }

static struct memory *find(uint64_t address) {
    for (int i = 0; i < MOST; i++)
        if (memories[i].size && address >= memories[i].base && address < memories[i].base + memories[i].size)
            return memories + i;
    return NULL;
}

static int add(int fd, uint64_t size, int device, int pooled, int opened, uint64_t *address) {
    void *place = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0);
    if (place == MAP_FAILED)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (!memories[i].size) {
            memories[i] = (struct memory){(uint64_t)place, size, fd, device, pooled, opened};
            break;
        }
    pthread_mutex_unlock(&lock);
    *address = (uint64_t)place;
    return OK;
}

static int allocate(uint64_t *address, size_t size, int pooled) {
    int fd = memfd_create("device", MFD_CLOEXEC);
    if (device_now() < 0)
        return INVALID_CONTEXT;
    if (fd < 0 || ftruncate(fd, size))
        return OUT_OF_MEMORY;
    return add(fd, size, device_now(), pooled, 0, address);
}

static void load(char *into, uint64_t address, size_t size) {
    struct memory *memory = find(address);
    if (!memory)
        memcpy(into, (void *)address, size);
    else if (pread(memory->fd, into, size, address - memory->base) != (ssize_t)size)
        abort();
}

static void store(uint64_t address, const char *data, size_t size) {
    struct memory *memory = find(address);
    if (!memory)
        memcpy((void *)address, data, size);
    else if (pwrite(memory->fd, data, size, address - memory->base) != (ssize_t)size)
        abort();
}

static void run(struct work *work) {
    char *bytes = malloc(work->size);
    if (work->value < 0)
        load(bytes, work->data, work->size);
    else
        memset(bytes, work->value, work->size);
    store(work->into, bytes, work->size);
    free(bytes);
}

static struct stream *stream_of(struct stream *stream) {
    return (uint64_t)stream > 2 ? stream : default_streams + device_now();
}

static int enqueue(struct stream *stream, uint64_t into, uint64_t data, size_t size, int value) {
    if (device_now() < 0)
        return INVALID_CONTEXT;
    struct work *work = malloc(sizeof *work), **last = &stream_of(stream)->first;
    *work = (struct work){into, data, size, value, NULL};
    pthread_mutex_lock(&lock);
    while (*last)
        last = &(*last)->next;
    *last = work;
    pthread_mutex_unlock(&lock);
    return OK;
}

int cuInit(unsigned flags) { (void)flags; return OK; }
int cuGetErrorName(int status, const char **name) {
    *name = status == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < DEVICES ? OK : INVALID_VALUE; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uint64_t)(device + 1); return OK; }
int cuCtxPushCurrent_v2(void *context) {
    if (!depth)
        __atomic_add_fetch(&num_holders, 1, __ATOMIC_SEQ_CST);
    current[depth++] = (int)(uint64_t)context - 1;
    return OK;
}
int cuCtxPopCurrent_v2(void **context) {
    if (!depth)
        return INVALID_CONTEXT;
    *context = (void *)(uint64_t)(current[--depth] + 1);
    if (!depth)
        __atomic_sub_fetch(&num_holders, 1, __ATOMIC_SEQ_CST);
    return OK;
}
int cuCtxGetCurrent(void **context) {
    *context = (void *)(uint64_t)(device_now() + 1);
    return OK;
}
int cuStubNumHolders(void) { return __atomic_load_n(&num_holders, __ATOMIC_SEQ_CST); }

int cuPointerGetAttribute(int *value, int attribute, uint64_t address) {
    struct memory *memory = find(address);
    if (attribute != 9 || !memory)
        return INVALID_VALUE;
    *value = memory->device;
    return OK;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) { return allocate(address, size, 0); }
int cuStubAllocPooled(uint64_t *address, size_t size) { return allocate(address, size, 1); }
int cuMemFree_v2(uint64_t address) {
    struct memory *memory = find(address);
    if (!memory || memory->base != address)
        return INVALID_VALUE;
    munmap((void *)memory->base, memory->size);
    close(memory->fd);
    memory->size = 0;
    return OK;
}
int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    (void)flags;
    *address = malloc(size);
    return device_now() < 0 ? INVALID_CONTEXT : OK;
}
int cuMemFreeHost(void *address) { free(address); return OK; }
int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
    struct memory *memory = find(address);
    if (device_now() < 0)
        return INVALID_CONTEXT;
    if (!memory)
        return INVALID_VALUE;
    *base = memory->base, *size = memory->size;
    return OK;
}

struct handle { int pid, fd, device; char rest[52]; };
int cuIpcGetMemHandle(struct handle *handle, uint64_t address) {
    struct memory *memory = find(address);
    if (device_now() < 0)
        return INVALID_CONTEXT;
    if (!memory || memory->pooled)
        return INVALID_VALUE;
    *handle = (struct handle){getpid(), memory->fd, memory->device, {0}};
    return OK;
}
int cuIpcOpenMemHandle_v2(uint64_t *address, struct handle handle, unsigned flags) {
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (device_now() < 0)
        return INVALID_CONTEXT;
    if (flags != 1 || handle.pid == getpid() || fd < 0 || fstat(fd, &found))
        return INVALID_VALUE;
    return add(fd, found.st_size, handle.device, 0, 1, address);
}
int cuIpcCloseMemHandle(uint64_t address) {
    struct memory *memory = find(address);
    return memory && memory->opened ? cuMemFree_v2(address) : INVALID_VALUE;
}

int cuStreamCreate(struct stream **stream, unsigned flags) {
    if (device_now() < 0 || flags != 1)
        return INVALID_CONTEXT;
    *stream = calloc(1, sizeof **stream);
    (*stream)->device = device_now();
    return OK;
}
int cuStreamSynchronize(struct stream *stream) {
    if (device_now() < 0)
        return INVALID_CONTEXT;
    stream = stream_of(stream);
    pthread_mutex_lock(&lock);
    struct work *work = stream->first;
    stream->first = NULL;
    pthread_mutex_unlock(&lock);
    while (work) {
        struct work *next = work->next;
        run(work);
        free(work);
        work = next;
    }
    return OK;
}
int cuCtxSynchronize(void) { return cuStreamSynchronize(NULL); }
int cuMemcpyAsync(uint64_t into, uint64_t data, size_t size, struct stream *stream) {
    return enqueue(stream, into, data, size, -1);
}
int cuMemsetD8Async(uint64_t into, unsigned char value, size_t size, struct stream *stream) {
    return enqueue(stream, into, 0, size, value);
}
int cuMemcpyHtoD_v2(uint64_t into, const void *data, size_t size) {
    store(into, data, size);
    return OK;
}
int cuMemcpyDtoH_v2(void *into, uint64_t data, size_t size) {
    load(into, data, size);
    return OK;
}
