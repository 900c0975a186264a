/* Libraries: a cubin's kernels and variables, from its symbol table and its .nv.info sections. */
#include "stub.h"

#include <stdlib.h>
#include <string.h>

#include "elf.h"

struct section {
    struct section *next;
    int number;
    size_t size;
    char *initial; /* or NULL: zeros */
    CUdeviceptr at[MAX_DEVICES];
};

struct global {
    struct global *next;
    char *name;
    struct section *section;
    size_t offset, size;
};

struct CUkern_st *kernel_of(const void *handle)
{
    if (!lives(handle, KERNEL))
        return NULL;
    struct CUkern_st *kernel = (struct CUkern_st *)handle;
    return kernel->library->object.alive ? kernel : NULL;
}

/* ---- reading ---- */

typedef void visitor(CUlibrary, struct CUkern_st *, int attribute, const unsigned char *value, int n);

static uint32_t word(const unsigned char *p) { uint32_t v; memcpy(&v, p, 4); return v; }

static void each_attribute(CUlibrary library, struct CUkern_st *kernel, const unsigned char *p, size_t n, visitor *visit)
{
    for (const unsigned char *end = p + n; p + 4 <= end;) {
        int sized = p[0] == ATTRIBUTE_SIZED, bytes = p[2] | p[3] << 8;
        visit(library, kernel, p[1], sized ? p + 4 : p + 2, sized ? bytes : 2);
        p += sized ? 4 + bytes : 4;
    }
}

static void of_kernel(CUlibrary library, struct CUkern_st *kernel, int attribute, const unsigned char *value, int n)
{
    if (attribute == KPARAM_INFO && n == 12) {
        unsigned ordinal = word(value + 4) & 0xffff;
        if (ordinal >= kernel->n_params) {
            kernel->offsets = realloc(kernel->offsets, (ordinal + 1) * 2);
            kernel->sizes = realloc(kernel->sizes, (ordinal + 1) * 2);
            kernel->n_params = ordinal + 1;
        }
        kernel->offsets[ordinal] = word(value + 4) >> 16;
        kernel->sizes[ordinal] = word(value + 8) >> 18;
    }
    if (attribute == CBANK_PARAM_SIZE)
        kernel->param_bytes = value[0] | value[1] << 8;
    if ((attribute == MAX_THREADS || attribute == REQNTID) && n == 12)
        kernel->max_threads = word(value) * word(value + 4) * word(value + 8);
}

static const char *image, *names, *symbol_names;
static const Elf64_Sym *symbols;

static struct CUkern_st *named(CUlibrary library, const char *name)
{
    struct CUkern_st *kernel = library->kernels;
    while (kernel && strcmp(kernel->name, name))
        kernel = kernel->next;
    return kernel;
}

static void of_library(CUlibrary library, struct CUkern_st *none, int attribute, const unsigned char *value, int n)
{
    if (n != 8)
        return;
    struct CUkern_st *kernel = named(library, symbol_names + symbols[word(value)].st_name);
    if (kernel && attribute == REGCOUNT)
        kernel->registers = word(value + 4);
    if (kernel && attribute == FRAME_SIZE)
        kernel->local = word(value + 4);
}

static struct section *section_of(CUlibrary library, int number)
{
    for (struct section *section = library->sections; section; section = section->next)
        if (section->number == number)
            return section;
    const Elf64_Shdr *header = &sections_of(image)[number];
    const char *name = names + header->sh_name;
    if (strncmp(name, ".nv.global", 10) && strncmp(name, ".nv.constant", 12))
        return NULL;
    struct section *section = calloc(1, sizeof *section);
    *section = (struct section){library->sections, number, header->sh_size};
    if (header->sh_type != SHT_NOBITS) {
        section->initial = malloc(header->sh_size);
        memcpy(section->initial, image + header->sh_offset, header->sh_size);
    }
    return library->sections = section;
}

static void add_kernel(CUlibrary library, const char *name)
{
    struct CUkern_st *kernel = create(KERNEL, sizeof *kernel);
    kernel->library = library;
    kernel->name = strdup(name);
    kernel->max_threads = 1024;
    kernel->registers = 32;
    kernel->max_dynamic_shared = STATIC_SHARED_LIMIT;
    kernel->carveout = -1;
    kernel->next = library->kernels;
    library->kernels = kernel;
    library->n_kernels++;
}

static void add_variable(CUlibrary library, const char *name, const Elf64_Sym *symbol)
{
    struct section *section = section_of(library, symbol->st_shndx);
    if (!section || !symbol->st_size)
        return;
    struct global *global = calloc(1, sizeof *global);
    *global = (struct global){library->globals, strdup(name), section, symbol->st_value, symbol->st_size};
    library->globals = global;
}

static void read_symbols(CUlibrary library, const Elf64_Shdr *table)
{
    symbols = (const Elf64_Sym *)(image + table->sh_offset);
    symbol_names = image + sections_of(image)[table->sh_link].sh_offset;
    for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
        const Elf64_Sym *symbol = &symbols[i];
        const char *name = symbol_names + symbol->st_name;
        bool defined = symbol->st_shndx != SHN_UNDEF && symbol->st_shndx < SHN_LORESERVE;
        if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_other & STO_ENTRY && defined)
            add_kernel(library, name);
        if (ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && defined)
            add_variable(library, name, symbol);
    }
}

/* The first 1 KiB of a block's shared memory is the system's, since sm_90. */
static void read_section(CUlibrary library, const Elf64_Shdr *section)
{
    const char *name = names + section->sh_name;
    const unsigned char *bytes = (const unsigned char *)image + section->sh_offset;
    if (!strcmp(name, ".nv.info"))
        each_attribute(library, NULL, bytes, section->sh_size, of_library);
    struct CUkern_st *kernel = NULL;
    if (!strncmp(name, ".nv.info.", 9) && (kernel = named(library, name + 9)))
        each_attribute(library, kernel, bytes, section->sh_size, of_kernel);
    if (!strncmp(name, ".nv.shared.", 11) && (kernel = named(library, name + 11)))
        kernel->static_shared = section->sh_size - (section->sh_size > 1024 ? 1024 : 0);
}

/* The architecture lies in another byte of the flags since CUDA 13. */
static CUresult check_image(const Elf64_Ehdr *header)
{
    REQUIRE(!memcmp(header->e_ident, ELFMAG, SELFMAG) && header->e_machine == EM_CUDA_, INVALID_IMAGE);
    unsigned arch = header->e_ident[EI_ABIVERSION] >= 8 ? header->e_flags >> 8 : header->e_flags;
    REQUIRE((arch & 0xff) / 10 == SM / 10 && (arch & 0xff) <= SM, NO_BINARY_FOR_GPU);
    return CUDA_SUCCESS;
}

static CUresult load(CUlibrary *library, const void *code)
{
    REQUIRE(code, INVALID_VALUE);
    const Elf64_Ehdr *header = code;
    CHECK(check_image(header));
    *library = create(LIBRARY, sizeof **library);
    image = code;
    const Elf64_Shdr *sections = sections_of(image);
    names = image + sections[header->e_shstrndx].sh_offset;
    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_SYMTAB)
            read_symbols(*library, &sections[i]);
    for (int i = 0; i < header->e_shnum; i++)
        read_section(*library, &sections[i]);
    return CUDA_SUCCESS;
}

/* ---- the interface ---- */

static bool is_eager;

void choose_loading(void)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    is_eager = mode && !strcmp(mode, "EAGER");
}

/* "Kernel loading may require context synchronization" (CUDA's guide, lazy loading). */
CUresult load_kernel(const char *call, struct CUkern_st *kernel)
{
    CONTEXT();
    if (!kernel->loaded)
        CHECK(would_wait(call, ctx, ALL_STREAMS));
    kernel->loaded = true;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                                   unsigned n_jit, CUlibraryOption *options, void **values, unsigned n)
{
    CHECK(initialised());
    CHECK(load(library, code));
    if (!is_eager || !stack_top)
        return CUDA_SUCCESS;
    for (struct CUkern_st *kernel = (*library)->kernels; kernel; kernel = kernel->next)
        CHECK(load_kernel("cuLibraryLoadData", kernel));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    CHECK(initialised());
    REQUIRE(lives(library, LIBRARY), INVALID_HANDLE);
    if (stack_top)
        CHECK(would_wait("cuLibraryUnload", stack_top, ALL_STREAMS));
    library->object.alive = 0;
    for (struct section *s = library->sections; s; s = s->next)
        for (int device = 0; device < MAX_DEVICES; device++)
            if (s->at[device])
                cuMemFree(s->at[device]);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CHECK(initialised());
    REQUIRE(lives(library, LIBRARY), INVALID_HANDLE);
    *kernel = named(library, name);
    REQUIRE(*kernel, NOT_FOUND);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernelCount(unsigned *n, CUlibrary library)
{
    REQUIRE(lives(library, LIBRARY), INVALID_HANDLE);
    *n = library->n_kernels;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel *kernels, unsigned n, CUlibrary library)
{
    REQUIRE(lives(library, LIBRARY), INVALID_HANDLE);
    struct CUkern_st *kernel = library->kernels;
    for (unsigned i = 0; i < n && kernel; i++, kernel = kernel->next)
        kernels[i] = kernel;
    return CUDA_SUCCESS;
}

static CUresult place(struct section *section, int device)
{
    if (section->at[device])
        return CUDA_SUCCESS;
    CHECK(allocate(&section->at[device], section->size, device, DEVICE_MEMORY));
    char *bytes = as_host(section->at[device], section->size, DEVICE_SIDE);
    if (section->initial)
        memcpy(bytes, section->initial, section->size);
    else
        memset(bytes, 0, section->size);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name)
{
    CONTEXT();
    REQUIRE(lives(library, LIBRARY), INVALID_HANDLE);
    struct global *global = library->globals;
    while (global && strcmp(global->name, name))
        global = global->next;
    REQUIRE(global, NOT_FOUND);
    CHECK(place(global->section, ctx->device));
    if (address)
        *address = global->section->at[ctx->device] + global->offset;
    if (bytes)
        *bytes = global->size;
    return CUDA_SUCCESS;
}

/* A CUmodule is the CUlibrary of the same address. */
CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    CONTEXT();
    REQUIRE(lives(library, LIBRARY), INVALID_HANDLE);
    *module = (CUmodule)library;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *code, unsigned n, CUjit_option *options, void **values)
{
    CONTEXT();
    CHECK(idle());
    return load((CUlibrary *)module, code);
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *code)
{
    return cuModuleLoadDataEx(module, code, 0, NULL, NULL);
}

CUresult CUDAAPI cuModuleUnload(CUmodule module) { return cuLibraryUnload((CUlibrary)module); }

CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CONTEXT();
    return cuLibraryGetKernel((CUkernel *)function, (CUlibrary)module, name);
}

CUresult CUDAAPI cuModuleGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
    return cuLibraryGetGlobal(address, bytes, (CUlibrary)module, name);
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    *mode = is_eager ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
