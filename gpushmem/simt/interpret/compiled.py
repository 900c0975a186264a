"""Functions of numba.cuda that the interpreter leaves to the compiled engine, a call at a time.

Mathematics of libdevice, 16- and 8-bit floats, the user's own intrinsics: each is compiled into a
kernel of one thread, once for each combination of types. So its results are the engine's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import types
from numba.cuda.np import numpy_support

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.simt.compiler.target import compiling, device
from gpushmem.simt.interpret.arrays import Array
from gpushmem.simt.interpret.numbers import numba_type, number
from gpushmem.simt.run.kernel import Kernel

__all__ = ["Compiled"]

ONE = shape_of(1, 1)
SOURCE = """
def call({args}):
    return {function}({args})

def kernel({outs}, {args}):
    {results} = call({args})
"""


def _type_of(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return types.Array(numpy_support.from_dtype(value.dtype), value.ndim, "A")
    return numba_type(value)


class Compiled:
    """A function, compiled for the types that it is called with."""

    def __init__(self, function: Any, name: str) -> None:
        self.function, self.name = function, name
        self._made: dict[Any, Any] = {}

    def __call__(self, *values: Any) -> Any:
        key = tuple(map(_type_of, values))
        if key not in self._made:
            self._made[key] = self._make(key)
        kernel, dtypes = self._made[key]
        outs = [np.zeros(1, dtype) for dtype in dtypes]
        plain = (v.view(np.ndarray) if isinstance(v, Array) else _plain(v, t)
                 for v, t in zip(values, key, strict=True))  # fmt: skip
        kernel.prepare(ONE, (*outs, *plain))()
        results = tuple(number(out[0]) for out in outs)
        return results[0] if len(results) == 1 else results

    def _make(self, argtypes: tuple[Any, ...]) -> Any:
        args = ", ".join(f"a{k}" for k in range(len(argtypes)))
        scope: dict[str, Any] = {"function": self.function, "cuda": cuda}
        # Numba knows the stubs as attributes of the module.
        function = f"cuda.{self.name}" if isinstance(self.function, type) else "function"
        source = SOURCE.format(args=args, outs="out", results="out[0]", function=function)
        exec(source, scope)  # noqa: S102
        with compiling():
            found = device(scope["call"]).compile_device(argtypes).signature.return_type
        several = list(found) if isinstance(found, types.BaseTuple) else [found]
        if len(several) > 1:
            outs = [f"out{k}" for k in range(len(several))]
            results = ", ".join(f"{out}[0]" for out in outs)
            source = SOURCE.format(
                args=args, outs=", ".join(outs), results=results, function=function
            )
        scope["call"] = device(scope["call"])
        exec(source.partition("\n\n")[2], scope)  # noqa: S102
        return Kernel(scope["kernel"]), [numpy_support.as_dtype(typ) for typ in several]


def _plain(value: Any, typ: Any) -> Any:
    """A number as the kernel's argument, of the type that it has in the kernel."""
    return numpy_support.as_dtype(typ).type(value)
