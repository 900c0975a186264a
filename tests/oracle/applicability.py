"""The tests of numba-cuda that cannot apply to an engine on the CPU, each with its reason.

A rule is a pattern for the test's name, `module.Class.test`. A test that passes all the same counts
as passed.
"""

import re

PTX = "reads the generated PTX, SASS or NVVM IR"
DWARF = "reads debug information generated for a GPU's debugger"
CUDA_CPP = "compiles or links CUDA C++, PTX or objects for a GPU"
COMPILER = "asks NVIDIA's compilers for PTX, LTO-IR or a cubin"
CUPY = "needs CuPy, which needs a GPU"
IPC = "shares memory between processes through the CUDA driver"
CACHE = "Numba 0.68 and numba-cuda 0.30 stamp the index file they share differently"

RULES = [
    (r"test_libdevice\.TestLibdeviceCompilation\.", COMPILER),
    (r"test_compiler\.", COMPILER),
    (r"test_debuginfo(_types)?\.", DWARF),
    (r"test_lineinfo\.", DWARF),
    (r"test_ipc\.", IPC),
    (r"test_ffi\.|test_cffi\.|linked|TestExtendingLinkage|TestDeclareDevice", CUDA_CPP),
    (r"test_cpu_and_cuda_(targets|reuse)", CACHE),
    (r"test_external_cooperative_func|test_cannot_cache_linking|doesnt_link_cudadevrt", CUDA_CPP),
    (r"test_cupy_|cupy|test_fortran_contiguous", CUPY),
    (r"_(ptx|codegen|sass\w*|lto\w*|asm\w*)$|test_inspect\.", PTX),
    (r"test_atomics\..*test_atomic_add_double(_\d|_global\w*)?$", PTX),
    (r"test_cache_hints\.(.*bad_indices|.*unsupported_dtypes)", COMPILER),
    (r"test_cache_hints\.|test_constmem\..*test_const_array(_\dd)?$", PTX),
    (r"test_debug\..*dump_(assembly|llvm)|test_minmax\.|test_selp$|TestCudaLocalMem.*_array$", PTX),
    (r"test_native_cast|test_compile_forceinline|test_mandel|_const_mode_val_", COMPILER),
    (r"test_launch_bounds_|test_optimization\.|test_fastmath\.", PTX),
    (r"test_const_string\.TestConstStringCodegen", PTX),
]


TYPES = "asks for an error of types, which the compiler finds"
CODE = "reads the compiled code, or its types"
LARGE = "has too many threads or steps for plain Python"
SILENT = "an exception without debug=True is to have no effect"

# Tests that do not apply to kernels that run as plain Python, either.
INTERPRETED = [
    (r"test_sm_creation\..*(invalid|build_list)|test_sm\..*invalid_array_type", TYPES),
    (r"test_localmem\..*invalid|test_cpu_dispatcher_invalid|type_validation", TYPES),
    (r"test_(localmem|sm_creation)\..*(dtype|struct)|test_inspect_llvm", CODE),
    (r"const_mode_val|is_cooperative$", CODE),
    (r"test_issue_9229|test_ex_(grid_sync|3d_grid|laplace|montecarlo)|test_sum_reduce", LARGE),
    (r"test_exception\.TestException\.test_exception$", SILENT),
]


def why_not(test, interpret=False):
    """The reason why a test does not apply, or None."""
    rules = RULES + INTERPRETED if interpret else RULES
    return next((why for pattern, why in rules if re.search(pattern, test)), None)
