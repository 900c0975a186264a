"""How an embedder writes what kernels call.

A `device` function is compiled into its callers, `inlined` ones by Numba's own means; an
`outlined` one once for each of them; a `kept` one once for all, in the store. `call_device` calls
one from code that is generated. `load_word` and `store_word` generate accesses that are atomic.
"""

from gpushmem.simt.compiler.cached_functions import ITSELF, KeptDispatcher, Warps, kept, outlined
from gpushmem.simt.compiler.target import call_device, device, inlined, made_of
from gpushmem.simt.intrinsics.ordered import load_word, store_word

__all__ = [
    "ITSELF", "KeptDispatcher", "Warps", "call_device", "device", "inlined", "kept", "load_word",
    "made_of", "outlined", "store_word",
]  # fmt: skip
