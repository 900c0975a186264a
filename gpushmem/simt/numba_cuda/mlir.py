"""Programs of numba-cuda-mlir, unmodified: its host side is numba-cuda's, patched.

numba-cuda-mlir's public names for the host (arrays, streams, events, devices) are replaced by
numba-cuda's of the same names, and its `jit` by one that makes numba-cuda's dispatchers; what
kernels mention keeps its names, which the compiler translates (`artifacts/mlir_aliases.py`). The
package is changed when the program imports it, and not imported before.
"""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from numba import cuda
from numba.core.errors import NumbaError
from numba.core.types import Type
from numba.cuda import ufuncs
from numba.cuda.core import config
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.np import ufunc_db

from gpushmem.artifacts.mlir_aliases import ROOT, place_of, theirs_of, twin, type_twin
from gpushmem.errors import BackendUnavailable
from gpushmem.import_hooks import WhenImported
from gpushmem.simt.compiler.target import replaced

__all__ = ["patched"]

CUDA = f"{ROOT}.cuda"
# Modules whose functions, classes and objects are for the host; as the beginning of their names.
HOST = tuple(
    f"{ROOT}.numba_cuda.{name}"
    for name in (
        "api", "args", "cudadrv", "device_init", "errors", "kernels", "np.ufunc", "random",
        "vectorizers",
    )
)  # fmt: skip
# Options of its `jit` that mean the same to numba-cuda's. Others are for its compiler.
OPTIONS = {
    "cache", "debug", "device", "extensions", "fastmath", "forceinline", "inline", "launch_bounds",
    "lineinfo", "link", "max_registers", "opt", "shared_memory_carveout",
}  # fmt: skip

# Errors of kernels that make arrays or combine whole ones: numba-cuda-mlir needs no option for the
# former, numba-cuda does, and leaves the latter (`a + b`) out of what kernels may use.
OF_ARRAYS = (
    "NRT required but not enabled", "Only accept returning of array passed into",
    "numba-cuda has no np.",
)  # fmt: skip


class _Overloads(OrderedDict[Any, Any]):
    """A dispatcher's kernels by their signatures, in either package's types."""

    def __missing__(self, signature: Any) -> Any:
        ours = type_twin(signature)
        if ours == signature:
            raise KeyError(signature)
        return self[ours]


class Dispatcher(CUDADispatcher):
    """numba-cuda's dispatcher, as numba-cuda-mlir's is called; its errors are also that one's."""

    def configure(
        self,
        griddim: Any,
        blockdim: Any,
        stream: Any = None,
        sharedmem: Any = None,
        cluster: Any = None,
    ) -> Any:
        """A launch. Blocks of a `cluster` run like others: what they share is not offered."""
        config = super().configure(griddim, blockdim, stream or 0, sharedmem or 0)
        sizes = (cluster,) if isinstance(cluster, int) else tuple(cluster or ())
        if any(n < 1 or blocks % n for blocks, n in zip(config.griddim, sizes, strict=False)):
            raise ValueError(
                f"a grid of {config.griddim} blocks does not consist of clusters of {cluster}; "
                "make each number a multiple of the cluster's"
            )
        return config

    def __getitem__(self, args: Any) -> Any:
        return self.configure(*args)

    def compile(self, sig: Any, **of_a_gpu: Any) -> Any:
        kernel = self._compiled(sig, **of_a_gpu)
        kernel.asks_for_shared_memory = True
        return kernel

    def _compiled(self, sig: Any, **of_a_gpu: Any) -> Any:
        if of_a_gpu:
            raise BackendUnavailable(
                "numba-cuda-mlir's compiler makes code for GPUs; call its `compile` functions "
                "outside of patch_numba_cuda()"
            )
        with _their_errors():
            try:
                return super().compile(type_twin(sig))
            except NumbaError as error:
                if not any(text in str(error) for text in OF_ARRAYS):
                    raise
        allowed = {(config, "CUDA_ENABLE_NRT"): True, (ufuncs, "get_ufunc_info"): _ufunc_info}
        with _their_errors(), replaced(allowed):
            return super().compile(type_twin(sig))

    def typeof_pyval(self, val: Any) -> Any:
        ours = twin(val)  # `specialize` takes types
        is_type = ours is not val and isinstance(ours, Type)
        return ours if is_type else super().typeof_pyval(ours)

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        with _their_errors():
            return super().compile_device(type_twin(args), type_twin(return_type))


def _of_kernels(name: str) -> Any:
    """A dispatcher's method of that name, which tells a property of one kernel, or of each."""

    def get(self: Any, signature: Any = None) -> Any:
        found = getattr(CUDADispatcher, name)(self, type_twin(signature))
        return _Overloads(found) if isinstance(found, dict) else found

    return get


for _name in (
    "get_const_mem_size", "get_local_mem_per_thread", "get_max_threads_per_block",
    "get_regs_per_thread", "get_shared_mem_per_block",
):  # fmt: skip
    setattr(Dispatcher, _name, _of_kernels(_name))


class _Handler:
    """A handler of arguments, which is given numba-cuda-mlir's types, and may return them."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def prepare_args(self, typ: Any, value: Any, stream: Any, retr: Any) -> Any:
        theirs = theirs_of(typ)
        made, value = self._handler.prepare_args(theirs, value, stream=stream, retr=retr)
        return typ if made is theirs else type_twin(made), value


def _ufunc_info(ufunc: Any) -> dict[str, Any]:
    """How a ufunc's loops are lowered: numba-cuda's, else those that Numba has for hosts."""
    return ufuncs.ufunc_db().get(ufunc) or ufunc_db.get_ufunc_info(ufunc)


@contextmanager
def _their_errors() -> Iterator[None]:
    try:
        yield
    except NumbaError as error:
        theirs = importlib.import_module(f"{ROOT}.numba_cuda.core.errors")
        kind = type(error)
        same = next(s for c in kind.__mro__ if (s := getattr(theirs, c.__name__, None)))
        if not issubclass(kind, same):
            error.__class__ = type(kind.__name__, (kind, same), {})  # as well
        raise


def jit(func_or_sig: Any = None, **options: Any) -> Any:
    """Stands in for `numba_cuda_mlir.cuda.jit`: gives a dispatcher of numba-cuda's."""
    decorators = importlib.import_module(f"{ROOT}.decorators")
    decorators.verify_target_options(options)
    kept = {k: v for k, v in options.items() if k in OPTIONS and v is not None}
    if "fast_math" in options:
        kept["fastmath"] = options["fast_math"]
    if "opt_level" in options:
        kept["opt"] = options["opt_level"] > 0
    if "extensions" in kept:
        kept["extensions"] = [_Handler(handler) for handler in kept["extensions"]]
    if isinstance(kept.get("inline"), bool):
        kept["inline"] = "always" if kept["inline"] else "never"
    annotated = options.get("annotations_as_signatures", True)

    def made(function: Any, signature: Any = None) -> Any:
        if annotated:
            from_annotations = decorators._extract_signature_from_annotations(function)
            if signature is not None and from_annotations is not None:
                raise TypeError(
                    f"Conflicting signature sources: {function.__name__} has the signature "
                    f"{signature} and the annotations {from_annotations}; remove one of them, or "
                    "set annotations_as_signatures=False"
                )
            signature = signature or from_annotations
        make = cuda.jit(type_twin(signature), **kept) if signature else cuda.jit(**kept)
        with _their_errors():
            dispatcher = make(function)
        dispatcher.__class__, dispatcher.overloads = Dispatcher, _Overloads(dispatcher.overloads)
        return dispatcher

    if func_or_sig is None:
        return made
    if decorators._get_signatures(func_or_sig) is None:
        return made(func_or_sig)
    return lambda function: made(function, func_or_sig)


def declare_device(name: str, sig: Any, **options: Any) -> Any:
    """Stands in for `numba_cuda_mlir.cuda.declare_device`."""
    return cuda.declare_device(name, type_twin(sig), **options)


# Names whose twin has another name, or is above.
ROWS = {
    (CUDA, "jit"): jit,
    (CUDA, "declare_device"): declare_device,
    (CUDA, "vectorize"): cuda.vectorize,
    (CUDA, "guvectorize"): cuda.guvectorize,
}


def _places() -> dict[tuple[Any, str], Any]:
    """What is replaced, of the modules that are loaded: (module, name) -> numba-cuda's object."""
    places = {}
    for name in [CUDA, f"{ROOT}.numba_cuda", *(m for m in sys.modules if m.startswith(HOST))]:
        module = sys.modules.get(name)
        for attribute, value in list(vars(module).items()) if module else ():
            ours = _host_twin(module, attribute, value)
            if ours is not value:
                places[module, attribute] = ours
    rows = {(sys.modules[module], name): ours for (module, name), ours in ROWS.items()}
    return places | rows


def _host_twin(module: Any, name: str, value: Any) -> Any:
    defined = getattr(value, "__module__", None)
    if name.startswith("__") or not (isinstance(defined, str) and defined.startswith(HOST)):
        return value
    place = place_of(module, name)
    return twin(value) if place is module else getattr(place, name)


@contextmanager
def patched() -> Iterator[None]:
    """Replace numba-cuda-mlir's host side inside the `with` block, now or when it is imported."""
    with ExitStack() as stack:

        def patch(module: Any = None) -> None:
            stack.enter_context(replaced(_places()))

        if hasattr(sys.modules.get(CUDA), "shared_array"):  # it has been imported to its end
            patch()
        else:
            waiting = WhenImported(CUDA, patch)
            waiting.wait()
            stack.callback(waiting.give_up)
        yield
