/* A CUDA driver without a GPU: what its parts share.
 *
 * This proves nothing about GPUs. It holds callers to the rules of the driver's interface: which
 * handles live, which addresses a device may use, how large a launch may be. Nothing runs on a
 * device: a stream does its work at once, in order, in the thread that asks for it, and a kernel
 * is written into a log (launch.c) and shown to a callback, which may do what it would have done.
 * A test may hold a stream, as a kernel does that does not end: calls that would wait for it fail
 * with CUDA_ERROR_LAUNCH_TIMEOUT and a text (`would_wait`).
 *
 * Names with `emulation_` are for tests, through ctypes: see driver.py.
 */
#ifndef STUB_H
#define STUB_H

/* All else is hidden: a name of ours must not take the place of one in another library. */
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 16
#define DRIVER_VERSION 13000
#define SM 90
#define STATIC_SHARED_LIMIT (48 << 10)
#define SHARED_LIMIT (227 << 10)  /* of a block that opted in */
#define SHARED_PER_SM (228 << 10)
#define REGISTERS_PER_SM 65536
#define THREADS_PER_SM 2048
#define BLOCKS_PER_SM 32

/* Every handle but a context's starts with this, and is never freed: a dead one is recognised. */
struct object {
    int kind, alive;
    struct object *next;
};
enum { STREAM = 1, EVENT, LIBRARY, KERNEL, GRAPH, GRAPH_EXEC, POOL, USER_OBJECT, VIRTUAL };

struct CUctx_st {
    int device, references, alive, primary, flags;
    unsigned peers;    /* bit per device to which access was enabled */
    CUresult sticky;   /* what every call returns once a kernel has failed */
    CUstream legacy, per_thread;
    size_t limits[CU_LIMIT_MAX + 1];
};

struct CUstream_st {
    struct object object;
    CUcontext ctx;
    unsigned flags;
    int priority;
    unsigned long long id;
    struct capture *capture; /* into which this stream's work is recorded, or NULL */
    bool unjoined;           /* forked into a capture, and not waited for since */
    bool held;               /* its work is put off: see emulation_hold */
    struct op *later;        /* what is put off, in order */
    unsigned n_later;
};

struct CUevent_st {
    struct object object;
    CUcontext ctx;
    unsigned flags;
    bool recorded;
    bool pending; /* recorded in work that is put off */
    double milliseconds;
    struct capture *capture; /* recorded inside this capture */
    CUstream stream;
};

struct CUlib_st {
    struct object object;
    struct CUkern_st *kernels;
    struct global *globals;
    struct section *sections; /* that hold variables */
    unsigned n_kernels;
};

/* A CUfunction is the CUkernel of the same address. */
struct CUkern_st {
    struct object object;
    CUlibrary library;
    struct CUkern_st *next;
    char *name;
    unsigned n_params, registers, static_shared, local, max_threads;
    unsigned max_dynamic_shared;
    int carveout; /* percent; -1: as the driver likes */
    bool loaded; /* its code is on the device */
    uint16_t *offsets, *sizes;
    unsigned param_bytes;
};

/* What a stream does. `run(op, dry)` checks, and unless `dry` does it. */
struct op {
    CUresult (*run)(struct op *, bool dry);
    CUstream stream;
    union {
        struct {
            uintptr_t dst, src;
            int dst_side, src_side;
            size_t dst_pitch, src_pitch, width, height;
        } copy;
        struct {
            CUdeviceptr dst;
            unsigned value, unit;
            size_t pitch, width, height;
        } set;
        struct {
            CUhostFn plain;
            int (*checked)(void *);
            void *data;
        } host;
        struct launch *launch;
        CUevent event;
    };
};

/* Who may use a pointer given to a copy. */
enum { HOST_SIDE, DEVICE_SIDE, EITHER_SIDE };

/* device.c */
extern __thread CUcontext stack_top;
CUresult initialised(void);
CUresult context(CUcontext *ctx); /* the current one, if calls may be made in it */
CUcontext primary(int device);
int n_devices(void);
int n_sms(void);
long setting(const char *name, long otherwise);

/* objects.c */
struct capture;
void lock(void);
void unlock(void);
void *create(int kind, size_t size);
bool lives(const void *handle, int kind);
bool any_stream(bool (*test)(struct capture *, CUstream), struct capture *c);
CUstream next_stream(CUstream before); /* of all that live; NULL before the first, after the last */

/* memory.c */
struct allocation *owner_of(uintptr_t address, size_t n);
void *as_host(uintptr_t address, size_t n, int side); /* NULL where `side` may not use it */
CUresult allocate(CUdeviceptr *address, size_t n, int device, int kind);
int initialise_memory(void);
enum { DEVICE_MEMORY, PINNED, REGISTERED, MANAGED, FOREIGN };

/* memory.c, for virtual.c and Python */
EXPORT int emulation_add_range(uintptr_t address, size_t size, uintptr_t host);
EXPORT int emulation_remove_range(uintptr_t address);
EXPORT uintptr_t emulation_reserve(size_t size, uintptr_t hint);
EXPORT int emulation_charge(int64_t n);
bool is_foreign(uintptr_t address); /* memory that Python added */

/* stream.c */
CUresult stream_of(CUstream handle, CUstream *stream);
CUresult submit(CUstream handle, struct op *op);
CUresult idle(void); /* an error where a capture forbids calls that are not of a stream */
CUresult check_not_captured(CUstream stream);
enum { DEFAULT_STREAM, ALL_STREAMS };
/* An error, and a text, where a call that waits for these streams would wait for a held one. */
CUresult would_wait(const char *call, CUcontext ctx, int which);
CUresult would_wait_for(const char *call, CUstream stream);
const char *last_wait(void); /* the text */

/* capture.c */
void append(struct capture *capture, struct op *op);
bool legacy_conflicts(CUstream stream);
void invalidate(struct capture *capture);

/* graph.c */
CUgraph new_graph(void);
void add_node(CUgraph graph, struct op *op);

/* module.c */
struct CUkern_st *kernel_of(const void *handle);
void choose_loading(void); /* when CUDA starts: LAZY unless CUDA_MODULE_LOADING says EAGER */
CUresult load_kernel(const char *call, struct CUkern_st *kernel); /* where that is not done yet */

/* launch.c */
int resident_blocks(const struct CUkern_st *kernel, int threads, size_t dynamic_shared);

#define CHECK(call)                       \
    do {                                  \
        CUresult check_ = (call);         \
        if (check_ != CUDA_SUCCESS)       \
            return check_;                \
    } while (0)
#define CONTEXT() CUcontext ctx; CHECK(context(&ctx))
#define REQUIRE(condition, error) do { if (!(condition)) return CUDA_ERROR_##error; } while (0)

#endif
