/* Virtual memory management: allocations that have no address until they are mapped to some.
 *
 * The bytes of an allocation are this process's alone, and are never given back to the host. Memory
 * of NVSHMEM's heap (`emulation_add_range`) has handles too, as if allocated for its device with a
 * file descriptor and for GPUDirect RDMA.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <sys/mman.h>

#define GRANULE (2ul << 20)

struct memory {
    struct object object;
    CUmemAllocationProp properties;
    size_t size;
    uintptr_t host, mapped_at, mapped; /* `mapped` bytes there; 0: nowhere */
    int references;
};

static struct memory *mappings[1024], *heaps[MAX_DEVICES];
static unsigned n_mappings;

static struct memory *memory_of(CUmemGenericAllocationHandle handle)
{
    return lives((void *)handle, VIRTUAL) ? (struct memory *)handle : NULL;
}

static struct memory *mapped_to(CUdeviceptr address)
{
    for (unsigned i = 0; i < n_mappings; i++)
        if (address - mappings[i]->mapped_at < mappings[i]->mapped)
            return mappings[i];
    return NULL;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granule, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags which)
{
    CHECK(initialised());
    *granule = GRANULE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties, unsigned long long flags)
{
    CONTEXT();
    REQUIRE(size && size % GRANULE == 0 && flags == 0, INVALID_VALUE);
    REQUIRE(n_mappings < 1024, OUT_OF_MEMORY);
    CHECK(emulation_charge(size));
    void *host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(host != MAP_FAILED, OUT_OF_MEMORY);
    struct memory *made = create(VIRTUAL, sizeof *made);
    made->properties = *properties;
    made->size = size;
    made->host = (uintptr_t)host;
    made->references = 1;
    *handle = (CUmemGenericAllocationHandle)made;
    return CUDA_SUCCESS;
}

static void end_if_unused(struct memory *gone)
{
    if (gone->references || gone->mapped)
        return;
    gone->object.alive = 0;
    emulation_charge(-(int64_t)gone->size);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CHECK(initialised());
    struct memory *known = memory_of(handle);
    REQUIRE(known && known->references > 0, INVALID_VALUE);
    known->references--;
    if (known->size)
        end_if_unused(known);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    CHECK(initialised());
    REQUIRE(size && size % GRANULE == 0, INVALID_VALUE);
    uintptr_t start = emulation_reserve(size + GRANULE, 0);
    REQUIRE(start, OUT_OF_MEMORY);
    *address = (start + GRANULE - 1) / GRANULE * GRANULE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t size)
{
    CHECK(initialised());
    REQUIRE(!mapped_to(address), INVALID_VALUE);
    return CUDA_SUCCESS; /* addresses are not used twice */
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CONTEXT();
    struct memory *memory = memory_of(handle);
    REQUIRE(memory && offset == 0 && size % GRANULE == 0 && size <= memory->size, INVALID_VALUE);
    REQUIRE(!memory->mapped, NOT_SUPPORTED); /* here: one place for each */
    CHECK(emulation_add_range(address, size, memory->host));
    memory->mapped_at = address;
    memory->mapped = size;
    mappings[n_mappings++] = memory;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t size)
{
    CHECK(initialised());
    struct memory *memory = mapped_to(address);
    REQUIRE(memory && memory->mapped_at == address && memory->mapped == size, INVALID_VALUE);
    CHECK(emulation_remove_range(address));
    memory->mapped = 0;
    end_if_unused(memory);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t n)
{
    CHECK(initialised());
    REQUIRE(mapped_to(address), INVALID_VALUE);
    return CUDA_SUCCESS;
}

static struct memory *of_heap(int device)
{
    if (!heaps[device]) {
        heaps[device] = create(VIRTUAL, sizeof *heaps[device]);
        CUmemAllocationProp *properties = &heaps[device]->properties;
        properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        properties->location.id = device;
        properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties->allocFlags.gpuDirectRDMACapable = 1;
    }
    return heaps[device];
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CONTEXT();
    struct memory *memory = mapped_to((CUdeviceptr)address);
    if (!memory && is_foreign((uintptr_t)address))
        memory = of_heap(ctx->device);
    REQUIRE(memory, INVALID_VALUE);
    memory->references++;
    *handle = (CUmemGenericAllocationHandle)memory;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    CHECK(initialised());
    REQUIRE(memory_of(handle), INVALID_VALUE);
    *properties = memory_of(handle)->properties;
    return CUDA_SUCCESS;
}
