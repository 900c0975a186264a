/* Memory: of a device, pinned, registered, managed, and pools of them.
 *
 * A device's memory has two addresses. That which callers see lies in one reserved range, SPAN for
 * each device, that nothing can read or write: code of the host that follows a device pointer ends
 * as it does with a GPU. The bytes lie `delta` above, for the copies here and for tests
 * (`emulation_host`). Addresses are not used twice, new memory is poison, and EMULATION_MEMORY is
 * how many bytes a device has.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SPAN (64ull << 30)
#define ALIGNMENT 512
#define POISON 0xa5
#define POISONED (16 << 20) /* at most, to be quick */

struct allocation {
    struct allocation *next;
    uintptr_t address, host;
    size_t size;
    int kind, device;
    CUmemoryPool pool;
    unsigned flags;
    unsigned long long id;
};

struct CUmemPoolHandle_st {
    struct object object;
    int device; /* or -1: of the host */
    uint64_t threshold, high;
};

static struct allocation *allocations;
static unsigned long long last_id;
static uintptr_t arena, next_free[MAX_DEVICES];
static size_t used[MAX_DEVICES], total;
static CUmemoryPool default_pools[MAX_DEVICES], current_pools[MAX_DEVICES];

int initialise_memory(void)
{
    size_t span = SPAN * MAX_DEVICES;
    void *hint = (void *)(1ull << 44);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *start = mmap(hint, 2 * span, PROT_NONE, flags, -1, 0);
    if (start == MAP_FAILED || mprotect(start + span, span, PROT_READ | PROT_WRITE))
        return -1;
    madvise(start + span, span, MADV_DONTDUMP);
    arena = (uintptr_t)start;
    total = setting("EMULATION_MEMORY", 8l << 30);
    for (int device = 0; device < MAX_DEVICES; device++)
        next_free[device] = arena + device * SPAN;
    return 0;
}

static bool in_arena(uintptr_t address)
{
    return address >= arena && address < arena + 2 * SPAN * MAX_DEVICES;
}

struct allocation *owner_of(uintptr_t address, size_t n)
{
    lock();
    struct allocation *a = allocations;
    while (a && !(address >= a->address && address - a->address < a->size))
        a = a->next;
    unlock();
    return a && a->size - (address - a->address) >= n ? a : NULL;
}

/* Pageable memory is the host's alone; what was never allocated, or freed, is nobody's. */
void *as_host(uintptr_t address, size_t n, int side)
{
    struct allocation *a = owner_of(address, n ? n : 1);
    bool on_device = a && (a->kind == DEVICE_MEMORY || a->kind == FOREIGN);
    if (a && !(side == HOST_SIDE && on_device))
        return (void *)(a->host + (address - a->address));
    if (a || side == DEVICE_SIDE || in_arena(address) || address < 4096)
        return NULL;
    return owner_of(address, 1) ? NULL : (void *)address;
}

static struct allocation *add(uintptr_t address, uintptr_t host, size_t size, int kind, int device)
{
    struct allocation *a = calloc(1, sizeof *a);
    *a = (struct allocation){allocations, address, host, size, kind, device};
    lock();
    a->next = allocations;
    a->id = ++last_id;
    allocations = a;
    unlock();
    return a;
}

static void forget(struct allocation *gone)
{
    lock();
    struct allocation **link = &allocations;
    while (*link && *link != gone)
        link = &(*link)->next;
    if (*link)
        *link = gone->next;
    unlock();
    free(gone);
}

static struct allocation *starting_at(uintptr_t address, int kind)
{
    struct allocation *a = owner_of(address, 1);
    return a && a->address == address && a->kind == kind ? a : NULL;
}

static size_t rounded(size_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static CUresult take_device_memory(CUdeviceptr *address, size_t n, int device)
{
    /* The unused line at the end tells an overrun from a neighbour. */
    size_t taken = rounded(n) + ALIGNMENT;
    lock();
    bool fits = n <= total && used[device] <= total - n;
    fits = fits && next_free[device] + taken <= arena + (device + 1) * SPAN;
    if (fits) {
        *address = next_free[device];
        next_free[device] += taken;
        used[device] += rounded(n);
    }
    unlock();
    REQUIRE(fits, OUT_OF_MEMORY);
    uintptr_t host = *address + SPAN * MAX_DEVICES;
    memset((void *)host, POISON, n < POISONED ? n : POISONED);
    add(*address, host, n, DEVICE_MEMORY, device);
    return CUDA_SUCCESS;
}

CUresult allocate(CUdeviceptr *address, size_t n, int device, int kind)
{
    REQUIRE(n && address, INVALID_VALUE);
    if (kind == DEVICE_MEMORY)
        return take_device_memory(address, n, device);
    void *host = n < total ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                           : MAP_FAILED;
    REQUIRE(host != MAP_FAILED, OUT_OF_MEMORY);
    memset(host, POISON, n < POISONED ? n : POISONED);
    *address = (uintptr_t)host;
    add(*address, *address, n, kind, device);
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr address, int kind)
{
    struct allocation *a = starting_at(address, kind);
    REQUIRE(a, INVALID_VALUE);
    if (kind == DEVICE_MEMORY) {
        lock();
        used[a->device] -= rounded(a->size);
        unlock();
        uintptr_t first = (a->host + 4095) & ~4095ul, end = (a->host + a->size) & ~4095ul;
        if (end > first)
            madvise((void *)first, end - first, MADV_DONTNEED);
    } else {
        munmap((void *)a->host, a->size);
    }
    forget(a);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *address, size_t n)
{
    CONTEXT();
    CHECK(idle());
    return allocate(address, n, ctx->device, DEVICE_MEMORY);
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    *pitch = rounded(width);
    return cuMemAlloc(address, *pitch * height);
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address)
{
    CONTEXT();
    if (!address)
        return CUDA_SUCCESS;
    CHECK(idle());
    CHECK(would_wait("cuMemFree", ctx, ALL_STREAMS));
    return release(address, starting_at(address, MANAGED) ? MANAGED : DEVICE_MEMORY);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t n, unsigned flags)
{
    CONTEXT();
    return allocate(address, n, ctx->device, MANAGED);
}

CUresult CUDAAPI cuMemHostAlloc(void **pointer, size_t n, unsigned flags)
{
    CONTEXT();
    CHECK(idle());
    CHECK(allocate((CUdeviceptr *)pointer, n, ctx->device, PINNED));
    owner_of((uintptr_t)*pointer, 1)->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocHost(void **pointer, size_t n) { return cuMemHostAlloc(pointer, n, 0); }

CUresult CUDAAPI cuMemFreeHost(void *pointer)
{
    CONTEXT();
    CHECK(idle());
    CHECK(would_wait("cuMemFreeHost", ctx, ALL_STREAMS));
    return release((uintptr_t)pointer, PINNED);
}

CUresult CUDAAPI cuMemHostRegister(void *pointer, size_t n, unsigned flags)
{
    CONTEXT();
    CHECK(idle());
    uintptr_t address = (uintptr_t)pointer;
    REQUIRE(pointer && n && !in_arena(address), INVALID_VALUE);
    REQUIRE(!owner_of(address, 1) && !owner_of(address + n - 1, 1), HOST_MEMORY_ALREADY_REGISTERED);
    add(address, address, n, REGISTERED, ctx->device)->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostUnregister(void *pointer)
{
    CONTEXT();
    CHECK(idle());
    CHECK(would_wait("cuMemHostUnregister", ctx, ALL_STREAMS));
    struct allocation *a = starting_at((uintptr_t)pointer, REGISTERED);
    REQUIRE(a, HOST_MEMORY_NOT_REGISTERED);
    forget(a);
    return CUDA_SUCCESS;
}

static bool on_host(const struct allocation *a) { return a && (a->kind == PINNED || a->kind == REGISTERED); }

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *address, void *pointer, unsigned flags)
{
    CONTEXT();
    REQUIRE(flags == 0 && on_host(owner_of((uintptr_t)pointer, 1)), INVALID_VALUE);
    *address = (uintptr_t)pointer;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned *flags, void *pointer)
{
    CONTEXT();
    struct allocation *a = owner_of((uintptr_t)pointer, 1);
    REQUIRE(on_host(a), INVALID_VALUE);
    *flags = a->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    CONTEXT();
    struct allocation *a = owner_of(address, 1);
    REQUIRE(a, NOT_FOUND);
    if (base)
        *base = a->address;
    if (size)
        *size = a->size;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetInfo(size_t *free, size_t *all)
{
    CONTEXT();
    *free = total - used[ctx->device];
    *all = total;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem(size_t *all, CUdevice device)
{
    CHECK(initialised());
    REQUIRE(device >= 0 && device < n_devices(), INVALID_DEVICE);
    *all = total;
    return CUDA_SUCCESS;
}

/* ---- pools ---- */

static CUmemoryPool new_pool(int device)
{
    CUmemoryPool pool = create(POOL, sizeof *pool);
    pool->device = device;
    return pool;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    CHECK(initialised());
    REQUIRE(device >= 0 && device < n_devices(), INVALID_DEVICE);
    if (!default_pools[device])
        default_pools[device] = new_pool(device);
    *pool = default_pools[device];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    CHECK(cuDeviceGetDefaultMemPool(pool, device));
    if (current_pools[device])
        *pool = current_pools[device];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CHECK(initialised());
    REQUIRE(lives(pool, POOL) && pool->device == device, INVALID_VALUE);
    current_pools[device] = pool;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CHECK(initialised());
    REQUIRE(props->handleTypes == CU_MEM_HANDLE_TYPE_NONE, NOT_SUPPORTED);
    bool device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    REQUIRE(!device || props->location.id < n_devices(), INVALID_VALUE);
    *pool = new_pool(device ? props->location.id : -1);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    CHECK(initialised());
    REQUIRE(lives(pool, POOL), INVALID_VALUE);
    pool->object.alive = 0;
    return CUDA_SUCCESS;
}

static uint64_t used_in(CUmemoryPool pool)
{
    uint64_t bytes = 0;
    lock();
    for (struct allocation *a = allocations; a; a = a->next)
        bytes += a->pool == pool ? a->size : 0;
    unlock();
    return bytes;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CHECK(initialised());
    REQUIRE(lives(pool, POOL), INVALID_VALUE);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(uint64_t *)value = used_in(pool);
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(uint64_t *)value = pool->high;
        break;
    default:
        *(int *)value = 1;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CHECK(initialised());
    REQUIRE(lives(pool, POOL), INVALID_VALUE);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CHECK(initialised());
    REQUIRE(lives(pool, POOL), INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    CHECK(initialised());
    REQUIRE(lives(pool, POOL), INVALID_VALUE);
    bool own = pool->device == -1 || location->id == pool->device;
    *flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t n)
{
    CHECK(initialised());
    REQUIRE(lives(pool, POOL), INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t n, CUmemoryPool pool, CUstream handle)
{
    CONTEXT();
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    CHECK(check_not_captured(stream));
    REQUIRE(lives(pool, POOL), INVALID_VALUE);
    bool host = pool->device == -1;
    CHECK(allocate(address, n, host ? ctx->device : pool->device, host ? PINNED : DEVICE_MEMORY));
    owner_of(*address, 1)->pool = pool;
    uint64_t now = used_in(pool);
    pool->high = now > pool->high ? now : pool->high;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *address, size_t n, CUstream handle)
{
    CONTEXT();
    CUmemoryPool pool;
    CHECK(cuDeviceGetMemPool(&pool, ctx->device));
    return cuMemAllocFromPoolAsync(address, n, pool, handle);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    CONTEXT();
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    CHECK(check_not_captured(stream));
    return release(address, starting_at(address, PINNED) ? PINNED : DEVICE_MEMORY);
}

/* ---- what is known of a pointer ---- */

static CUresult attribute_of(struct allocation *a, CUdeviceptr address, CUpointer_attribute which, void *out)
{
    bool device = a->kind == DEVICE_MEMORY || a->kind == FOREIGN;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)out = primary(a->device);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = on_host(a) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)out = address;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        REQUIRE(!device, INVALID_VALUE);
        *(void **)out = (void *)address;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)out = a->id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)out = a->kind == MANAGED; /* a bool, in callers an unsigned */
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = a->device;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)out = a->address;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)out = a->size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)out = 1;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)out = a->pool;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr address)
{
    CHECK(initialised());
    struct allocation *a = owner_of(address, 1);
    REQUIRE(a && out, INVALID_VALUE);
    return attribute_of(a, address, which, out);
}

/* Unlike the singular, of a pointer that CUDA does not know it says zero and success. */
CUresult CUDAAPI cuPointerGetAttributes(unsigned n, CUpointer_attribute *which, void **out, CUdeviceptr address)
{
    CHECK(initialised());
    struct allocation *a = owner_of(address, 1);
    for (unsigned i = 0; i < n; i++) {
        bool narrow = which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || which[i] == CU_POINTER_ATTRIBUTE_MAPPED
            || which[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED || which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        memset(out[i], 0, narrow ? 4 : 8);
        if (!a && which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)out[i] = -2;
        if (a)
            attribute_of(a, address, which[i], out[i]);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute which, CUdeviceptr address)
{
    CHECK(initialised());
    REQUIRE(owner_of(address, 1), INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* ---- for tests and for nvshmem_bindings.py ---- */

/* Reserve `size` bytes of addresses that only a device could use; 0 if there are none. */
EXPORT uintptr_t emulation_reserve(size_t size, uintptr_t hint)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *start = mmap((void *)hint, size, PROT_NONE, flags, -1, 0);
    return start == MAP_FAILED ? 0 : (uintptr_t)start;
}

/* Make [address, address + size) memory of the calling thread's device, its bytes at `host`. */
EXPORT int emulation_add_range(uintptr_t address, size_t size, uintptr_t host)
{
    CONTEXT();
    REQUIRE(!owner_of(address, 1) && !owner_of(address + size - 1, 1), INVALID_VALUE);
    add(address, host, size, FOREIGN, ctx->device);
    return CUDA_SUCCESS;
}

EXPORT int emulation_remove_range(uintptr_t address)
{
    struct allocation *a = starting_at(address, FOREIGN);
    REQUIRE(a, INVALID_VALUE);
    forget(a);
    return CUDA_SUCCESS;
}

bool is_foreign(uintptr_t address)
{
    struct allocation *a = owner_of(address, 1);
    return a && a->kind == FOREIGN;
}

/* Let the allocation of `address` have its bytes from there on at `host`; return where they were. */
EXPORT uintptr_t emulation_move(uintptr_t address, uintptr_t host)
{
    struct allocation *a = owner_of(address, 1);
    if (!a)
        return 0;
    uintptr_t was = a->host + (address - a->address);
    a->host = host - (address - a->address);
    return was;
}

/* Where the `n` bytes at an address that a device may use lie for the host; 0 if it may not. */
EXPORT uintptr_t emulation_host(uintptr_t address, size_t n)
{
    return (uintptr_t)as_host(address, n, DEVICE_SIDE);
}

EXPORT size_t emulation_used(int device) { return used[device]; }

/* Count memory that NVSHMEM took, or with a negative `n` gave back. */
EXPORT int emulation_charge(int64_t n)
{
    CONTEXT();
    REQUIRE(n <= 0 || (size_t)n <= total - used[ctx->device], OUT_OF_MEMORY);
    used[ctx->device] += n;
    return CUDA_SUCCESS;
}
