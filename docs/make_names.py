"""Write the tables of docs/coming-from-nvshmem4py.md: nvshmem4py's names, and what they mean here.

python docs/make_names.py

The names are read from the sources of the installed nvshmem4py, and from gpushmem.compat. A name
that is missing here needs a reason, below.
"""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

PAGE = Path(__file__).parent / "coming-from-nvshmem4py.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"
OURS = "gpushmem.compat.nvshmem"

# What differs of the names that are there.
DIFFERS = {
    "array": "a gpushmem array with CuPy's `get`, `set`, `fill`, `data.ptr`; computes like NumPy's",
    "bytearray": "as `array`",
    "tensor": "a CPU tensor",
    "bytetensor": "a CPU tensor",
    "buffer": "`release` and `except_on_del` make no difference: only `free` and `finalize` free",
    "NvshmemResource": "allocates; the memory may be read by the host",
    "NvshmemKernelObject": "making one is an error: there are no modules of GPU code",
    "module_init": "does nothing", "module_finalize": "does nothing",
    "library_init": "does nothing", "library_finalize": "does nothing",
    "find_device_bitcode_library": "an error: nothing links NVSHMEM's device library",
    "get_multicast_buffer": "`NvshmemError`, as on GPUs without an NVLink switch",
    "get_multicast_array": "host: `NvshmemError`, as on GPUs without an NVLink switch; kernels: "
    "may be written, not read",
    "get_multicast_tensor": "`NvshmemError`, as on GPUs without an NVLink switch",
    "register_external_buffer": "whole pages of the host's memory; no `preferred_address`",
    "register_external_array": "whole pages of the host's memory",
    "register_external_tensor": "whole pages of the host's memory",
    "get_name": "gpushmem", "get_version": "the library's version is gpushmem's",
    "init": "see [How to run](#how-to-run)",
    "Teams": "without TEAM_SAME_MYPE_NODE, TEAM_SAME_GPU, TEAM_GPU_LEADERS, TEAM_MC_SHARED, "
    "TEAMS_MIN, TEAM_INDEX_MAX",
    "team_get_config": "the configuration that was given",
    "put_nbi": "as `put`", "get_nbi": "as `get`", "put_signal_nbi": "as `put_signal`",
    "query_thread": "THREAD_SERIALIZED",
    "atomic_compare_swap": "integers only",
    "mc_ptr": "a null pointer, as without an NVLink switch",
}  # fmt: skip

# Why names are missing.
MISSING = {
    "atomicAdd_system": "a function of CUDA C++, not of NVSHMEM's",
    "barrier_warpgroup": "there are no warp groups on the CPU",
    "double2_maxloc_reduce_block": "of CUDA C++'s double2: `gpushmem.reduce_block` has \"maxloc\"",
    "half_atomic_add": "atomic operations on 16-bit floats are not in OpenSHMEM's table",
    "half_atomic_fetch_add": "atomic operations on 16-bit floats are not in OpenSHMEM's table",
    "info_get_name": "ask on the host", "info_get_version": "ask on the host",
    "vendor_get_version_info": "ask on the host",
    "region_is_active": "regions of batched operations do not exist here",
    "region_stop_block": "regions of batched operations do not exist here",
    "signal_counted_reset": "counted signals do not exist here",
}  # fmt: skip
MODULES = (
    ("nvshmem.core", "core", "The host's functions."),
    ("nvshmem.core.device.numba", "core.device.numba", "In kernels, on arrays."),
    ("nvshmem.bindings.device.numba", "bindings.device.numba", "In kernels, on pointers: names "
     "that differ by a dtype are one row, with {type} in its place and the number of them."),
)  # fmt: skip
ELSEWHERE = """
Other modules of nvshmem4py: `nvshmem.bindings` has its enumerations and ids, and none of its
functions of addresses (use `nvshmem.core`); `nvshmem.core.utils` has `get_size` and `dtype_nbytes`.
`nvshmem.core.device.numba_cuda_mlir`, `nvshmem.core.device.cute` and their bindings are missing:
kernels are those of numba.cuda. Of `cuda.core` there are `Device`, `Stream`, `Event`, `Buffer`,
`MemoryResource`, `DeviceMemoryResource`, `StreamOptions`, `EventOptions` and `system`; the rest
needs a GPU.
"""


def folder():
    """Where nvshmem4py is installed; None without it."""
    spec = importlib.util.find_spec("nvshmem")
    return spec and Path(next(iter(spec.submodule_search_locations)))


def their_names(module):
    """The public names of a module of nvshmem4py: those of its files' `__all__`."""
    place = folder() / module.removeprefix("nvshmem.").replace(".", "/")
    files = [file for file in place.glob("*.py") if file.name != "__init__.py"]
    if module == "nvshmem.core":
        files += [file for file in (place / "interop").glob("*.py") if file.name != "cute.py"]
    names = set()
    for file in files:
        for name, value in lists_of(file.read_text()):
            if name in ("__all__", "_FUNCTION_SYMBOLS", "_ENUM_SYMBOLS"):
                names |= set(value)
    return names


def lists_of(text):
    """The assignments of lists of texts in a file."""
    for found in re.finditer(r"^(\w+) = (\[[^\]]*\])", text, re.DOTALL | re.MULTILINE):
        try:
            yield found[1], ast.literal_eval(found[2])
        except (ValueError, SyntaxError):
            continue


def our_names(part):
    """The public names of ours."""
    return set(importlib.import_module(f"{OURS}.{part}").__all__)


def row(name, ours):
    """What is said of a name: how it is here, and what differs."""
    if name not in ours:
        return "missing", MISSING[name]  # KeyError: say why
    return ("differs", DIFFERS[name]) if name in DIFFERS else ("same", "")


def family(name):
    """A name with {type} in the place of a dtype."""
    types = importlib.import_module(f"{OURS}.bindings.device.numba").TYPES
    head, _, rest = name.removeprefix("qp_").partition("_")
    if head not in types or not rest or name in MISSING:
        return name
    return f"{'qp_' * name.startswith('qp_')}{{type}}_{rest}"


def table(module, part, what):
    """The table of one module."""
    theirs, ours = their_names(module), our_names(part)
    extra = ours - theirs
    assert not extra, f"{module} has no {extra}"
    families = {}
    for name in sorted(theirs):
        families.setdefault((family(name), *row(name, ours)), []).append(name)
    counts = {}
    for (_, how, _), names in families.items():
        counts[how] = counts.get(how, 0) + len(names)
    said = ", ".join(f"{count} {how}" for how, count in sorted(counts.items(), reverse=True))
    lines = [f"### {module}\n\n{what} {len(theirs)} names: {said}.\n\n"]
    same = [
        f"`{shown}`" + (f" ({len(names)})" if len(names) > 1 else "")
        for (shown, how, _), names in families.items() if how == "same"
    ]  # fmt: skip
    lines.append(f"The same: {', '.join(same)}.\n\n| name | here |  |\n| --- | --- | --- |\n")
    lines += [f"| `{shown}` | {how} | {why} |\n" for (shown, how, why) in families if how != "same"]
    return "".join(lines)


def tables():
    """All tables."""
    return "\n".join([*(table(*each) for each in MODULES), ELSEWHERE])


def page():
    """The page with its tables as they should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + tables() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
