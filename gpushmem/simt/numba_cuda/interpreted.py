"""Kernels of numba.cuda that are interpreted: what stands for compiling and launching them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cuda.core._utils.cuda_utils import CUDAError
from numba.cuda import types, typing
from numba.cuda.args import wrap_arg
from numba.cuda.dispatcher import _Kernel
from numba.cuda.np import numpy_support

from gpushmem.artifacts.gpu_limits import MAX_THREADS
from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.errors import ArgumentError
from gpushmem.simt.interpret.arrays import array_at, record_at
from gpushmem.simt.interpret.launch import interpret
from gpushmem.simt.interpret.names import Names
from gpushmem.simt.interpret.numbers import fitted, number
from gpushmem.simt.numba_cuda.driver import Driver

__all__ = ["InterpretedKernel", "declared"]


class NoLibrary:
    """The place of a kernel's code."""

    def __init__(self, kernel: InterpretedKernel) -> None:
        self.name, self.handle, self.attributes, self.kernel = kernel.name, kernel, self, self
        self.max_threads_per_block = kernel.max_threads_per_block

    def get_cufunc(self) -> NoLibrary:
        return self

    def _no_code(self, *args: Any, **options: Any) -> str:
        raise RuntimeError(f"kernel {self.name} is interpreted: it has no compiled code")

    get_llvm_str = get_asm_str = get_sass = get_sass_cfg = get_lto_ptx = _no_code


class InterpretedKernel(_Kernel):
    """A kernel for one signature, which the interpreter runs."""

    engine: Driver  # of the patch

    def __init__(
        self,
        py_func: Any,
        argtypes: Any,
        debug: bool = False,
        lineinfo: bool = False,
        extensions: Any = None,
        device: bool = False,
        launch_bounds: Any = None,
        **others: Any,
    ) -> None:
        if device:
            raise RuntimeError("Cannot compile a device function as a kernel")
        self.py_func, self.argtypes, self.debug, self.lineinfo = py_func, argtypes, debug, lineinfo
        self.extensions, self.launch_bounds = extensions or [], launch_bounds
        self.signature = typing.signature(types.void, *argtypes)
        self.name = self.entry_name = py_func.__name__
        self.objectmode, self.entry_point, self.cooperative = False, None, False
        self.launch_config_sensitive, self._type_annotation = False, None
        self._codelibrary = NoLibrary(self)
        self.body = Names().function(py_func)

    def bind(self) -> None:
        """Nothing to do: there is nothing to load."""

    regs_per_thread = property(lambda self: 32)
    const_mem_size = shared_mem_per_block = local_mem_per_thread = property(lambda self: 0)

    @property
    def max_threads_per_block(self) -> int:
        bounds = self.launch_bounds
        return (bounds[0] if isinstance(bounds, tuple) else bounds) or MAX_THREADS

    def launch(
        self, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0
    ) -> None:
        """Wait for what the stream has to do before, and run the grid on this thread."""
        if len(args) != len(self.argument_types):
            raise TypeError(
                f"kernel {self.name} takes {len(self.argument_types)} arguments, got {len(args)}"
            )
        after: list[Any] = []
        try:
            shape = shape_of(griddim, blockdim, sharedmem)
            limit = self.max_threads_per_block
            if shape.threads > limit:
                raise ArgumentError(f"{shape.threads} threads; launch_bounds allows {limit}")
        except ArgumentError as error:
            raise CUDAError(f"CUDA_ERROR_INVALID_VALUE: {error}") from error
        values = tuple(
            self._in_kernel(typ, value, stream, after)
            for typ, value in zip(self.argument_types, args, strict=True)
        )
        self.engine.queue(stream).submit(lambda: None)  # after what the default stream waits for
        self.engine.cuStreamSynchronize(stream)
        interpret(self.body, shape, values, self.debug)
        for write_back in after:
            write_back()

    def _in_kernel(self, typ: Any, value: Any, stream: Any, after: list[Any]) -> Any:
        """An argument as the kernel sees it, made as numba-cuda makes the compiled kernel's."""
        for extension in reversed(self.extensions):
            typ, value = extension.prepare_args(typ, value, stream=stream, retr=after)
        if isinstance(typ, types.Array):
            view = wrap_arg(value).to_device(after, stream)
            layout = view._layout
            strides = layout.strides_in_bytes or numpy_support.strides_from_shape(
                shape=view.shape, itemsize=view.dtype.itemsize,
                c_contiguous=layout.is_contiguous_c, f_contiguous=layout.is_contiguous_f,
            )  # fmt: skip
            return array_at(view.ptr, view.shape, strides, view.dtype)
        if isinstance(typ, types.Record):
            view = wrap_arg(value).to_device(after, stream)
            return record_at(view.ptr, view.dtype)
        if isinstance(typ, types.CPointer):
            dtype = numpy_support.as_dtype(typ.dtype)
            return array_at(int(value), (2**40 // dtype.itemsize,), None, dtype)
        if isinstance(typ, types.BaseTuple):
            items = [self._in_kernel(t, v, stream, after) for t, v in zip(typ, value, strict=True)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(typ, types.Number | types.Boolean):
            return number(fitted(value, numpy_support.as_dtype(typ)))
        return value


def declared(py_func: Any, return_type: Any, args: Any, **options: Any) -> Any:
    """Stands in for `numba.cuda.compiler.compile_cuda`: a device function's types, and no code."""
    ignore = SimpleNamespace(insert_user_function=lambda *args: None)
    return SimpleNamespace(
        signature=typing.signature(return_type, *args), entry_point=None, fndesc=None,
        library=None, target_context=ignore, objectmode=False,
    )  # fmt: skip
