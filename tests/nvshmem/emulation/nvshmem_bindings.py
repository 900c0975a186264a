"""A stand-in for the functions of `nvshmem.bindings`: real nvshmem.core runs on top of it.

This proves nothing about NVSHMEM. The PEs are processes of one machine; the bytes move between
them (heap.py, stream_ops.py, collectives.py), and what NVSHMEM forbids raises EmulationError where
it would hang, abort or carry on. What is not here raises NotImplementedError with its name.
Queries of versions remain the real library's.
"""

import ctypes
import functools
import re

from tests.nvshmem.emulation import collectives, stream_ops, world
from tests.nvshmem.emulation.driver import host_address, wait_for_device
from tests.nvshmem.emulation.errors import EmulationError
from tests.nvshmem.emulation.job import new_file_name
from tests.nvshmem.emulation.stream_ops import as_int
from tests.nvshmem.emulation.world import complete

NOT_INITIALIZED, BOOTSTRAPPED, INITIALIZED, LIMITED_MPG = range(4)
INIT_WITH_UNIQUEID = 8
ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED, ERROR_INTERNAL = 1, 3, 7
UNIQUEID_BYTES, UNIQUEID_VERSION = 128, 1
_REAL = (
    "info_get_version", "info_get_name", "vendor_get_version_info", "query_thread", "check_status",
)  # fmt: skip

_attributes: dict[int, tuple[int, int, str]] = {}
_error: list[type] = [RuntimeError]  # NVSHMEMError, which takes a status
ready_libraries: dict[int, int] = {}  # handle: how often culibrary_init was called
_states: dict[int, int] = {}  # handle: the address that NVSHMEM keeps, and writes its state to


def _fail(status: int):
    raise _error[0](status)


# ---- beginning and end ----


def get_uniqueid(pointer):
    """Write the name of a file to be, as 128 bytes."""
    value = UNIQUEID_VERSION.to_bytes(4, "little") + new_file_name()
    ctypes.memmove(as_int(pointer), value.ljust(UNIQUEID_BYTES, b"\0"), UNIQUEID_BYTES)


def set_attr_uniqueid_args(me, n, uniqueid, attr):
    me, n = as_int(me), as_int(n)
    raw = ctypes.string_at(as_int(uniqueid), UNIQUEID_BYTES)
    known = int.from_bytes(raw[:4], "little") == UNIQUEID_VERSION
    if not 0 <= me < n or not known:
        raise EmulationError(
            f"init: PE {me} of {n}, with an id that is {'' if known else 'not '}one"
        )
    _attributes[as_int(attr)] = (me, n, raw[4:].rstrip(b"\0").decode())


def hostlib_init_attr(flags, attr):
    if as_int(flags) != INIT_WITH_UNIQUEID or as_int(attr) not in _attributes:
        _fail(ERROR_NOT_SUPPORTED)
    me, n, path = _attributes.pop(as_int(attr))
    world.start(path, me, n)


def hostlib_finalize():
    world.end()


def init_status():
    now = world.current()
    if now is None:
        return NOT_INITIALIZED
    if now.heap is None:
        return BOOTSTRAPPED
    return LIMITED_MPG if now.limited_mpg else INITIALIZED


def my_pe():
    return -1 if world.current() is None else world.current().job.me


def n_pes():
    return -1 if world.current() is None else world.current().job.n


# ---- memory ----


def malloc(size):
    now, n, doing = complete(), as_int(size), f"malloc({as_int(size)})"
    _write_states(doing)
    now.teams.meet(0, doing)
    address = now.heap.take(n) if n else None
    now.teams.barrier(0, doing)
    return address or 0


def free(pointer):
    if not as_int(pointer):
        return
    now = complete()
    offset = now.heap.start_of(as_int(pointer), "free")
    now.teams.meet(0, f"free(heap+{offset})")
    now.heap.release(as_int(pointer))


def ptr(dest, pe):
    return complete().heap.peer(as_int(dest), as_int(pe))


def mc_ptr(team, pointer):
    return 0


def buffer_register_symmetric(buffer, size, flags):
    now = complete()
    now.teams.meet(0, f"buffer_register_symmetric({as_int(size)})")
    address = now.heap.attach(as_int(buffer), as_int(size))
    now.teams.barrier(0, "buffer_register_symmetric")
    return address


def buffer_unregister_symmetric(pointer, size):
    now = complete()
    now.teams.meet(0, f"buffer_unregister_symmetric({as_int(size)})")
    now.heap.detach(as_int(pointer))
    return 0


# ---- teams ----


def _store(pointer, value):
    ctypes.c_int.from_address(as_int(pointer)).value = value


def team_split_strided(parent, start, stride, size, config, mask, new):
    args = (as_int(value) for value in (parent, start, stride, size))
    _store(new, complete().teams.split_strided(*args))


def team_split_2d(parent, width, x_config, x_mask, x_team, y_config, y_mask, y_team):
    x, y = complete().teams.split_2d(as_int(parent), as_int(width))
    _store(x_team, x)
    _store(y_team, y)


CONFIG_V2, MASK_UNIQUEID = (2 << 16) + 64, 2


def team_init(new, config, mask, n, me):
    """As NVSHMEM, of which each call needs an id of its own; nobody but the members calls."""
    if not as_int(config):
        _fail(ERROR_INVALID_VALUE)
    version = ctypes.c_int.from_address(as_int(config)).value
    identity = ctypes.c_uint64.from_address(as_int(config) + 8).value
    if version != CONFIG_V2 or not mask & MASK_UNIQUEID or identity in _team_ids:
        _fail(ERROR_INVALID_VALUE)
    _team_ids.add(identity)
    _store(new, complete().teams.init(as_int(n), as_int(me), identity))


_team_ids: set[int] = set()  # that have been used


# ---- kernels' libraries ----


def _state_of(library, name):
    from cuda.bindings import driver

    error, address, _ = driver.cuLibraryGetGlobal(as_int(library), name)
    return None if int(error) else int(address)


def _write_states(doing):
    """As NVSHMEM, which copies its state to every library that it was told of."""
    for library, address in _states.items():
        try:
            host_address(address, 1)
        except ValueError:
            raise EmulationError(
                f"{doing}: library {library:#x} was unloaded, and NVSHMEM writes to it"
            ) from None


def culibrary_init(library):
    """Fails, as NVSHMEM does, where the library's code has nothing of NVSHMEM in it.

    It copies with the default stream, and waits for the device.
    """
    complete()
    address = _state_of(library, b"nvshmemi_device_lib_version_d")
    if address is None:
        return ERROR_INTERNAL
    text = wait_for_device("nvshmemx_culibrary_init")
    if text is not None:
        raise EmulationError(text)
    _states[as_int(library)] = address
    _write_states("culibrary_init")
    ready_libraries[as_int(library)] = ready_libraries.get(as_int(library), 0) + 1
    return 0


def culibrary_finalize(library):
    if not ready_libraries.get(as_int(library)):
        return ERROR_INTERNAL
    ready_libraries[as_int(library)] -= 1
    _states.pop(as_int(library), None)
    return 0


FUNCTIONS = {
    function.__name__: function
    for function in (
        get_uniqueid, set_attr_uniqueid_args, hostlib_init_attr, hostlib_finalize, init_status,
        my_pe, n_pes, malloc, free, ptr, mc_ptr, buffer_register_symmetric,
        buffer_unregister_symmetric, team_split_strided, team_split_2d, team_init, culibrary_init,
        culibrary_finalize,
    )
} | {
    "cumodule_init": culibrary_init,  # the stub's modules are its libraries
    "cumodule_finalize": culibrary_finalize,
    "team_my_pe": lambda team: complete().teams.my_pe(as_int(team)),
    "team_n_pes": lambda team: complete().teams.n_pes(as_int(team)),
    "team_translate_pe": lambda *args: complete().teams.translate(*map(as_int, args)),
    "team_destroy": lambda team: complete().teams.destroy(as_int(team)),
}  # fmt: skip


def patch(bindings) -> None:
    """Replace the functions in `nvshmem.bindings`, before anything takes them from there."""
    _error[0] = bindings.NVSHMEMError
    names = [name for name in dir(bindings) if type(getattr(bindings, name)).__name__ in _CYTHON]
    replaced = dict(FUNCTIONS) | stream_ops.FUNCTIONS | collectives.BARRIERS
    replaced |= collectives.functions(names)
    for name in names:
        if name not in _REAL:
            found = replaced.get(name) or functools.partial(_not_here, name)
            setattr(bindings, name, _unshared(name, found) if _UNSHARED(name) else found)


_CYTHON = ("cython_function_or_method", "builtin_function_or_method")


_UNSHARED = re.compile(
    r"(\w+_)?(fcollect|alltoall|broadcast|reduce|reducescatter|wait_until|barrier|team_sync)_on_stream"
    r"|barrier|team_split_\w+|team_init"
).fullmatch


def _unshared(name, function):
    """Of these functions NVSHMEM ends the process where PEs share a GPU without MPS."""

    @functools.wraps(function)
    def checked(*args):
        if complete().limited_mpg:
            raise EmulationError(f"{name} is not supported with limited MPG: NVSHMEM would exit")
        return function(*args)

    return checked


def _not_here(name, *args):
    raise NotImplementedError(f"nvshmem.bindings.{name} is not emulated")
