"""Functions of LLVM bitcode libraries made for GPUs, and what their instructions mean here."""

from gpushmem.simt.bitcode.extraction import Facts
from gpushmem.simt.bitcode.intrinsics import generator, now, places, unseen_polls
from gpushmem.simt.bitcode.library import Bitcode
from gpushmem.simt.bitcode.translate import Leaf
from gpushmem.simt.compiler.primitives import load_field
from gpushmem.simt.compiler.target import INTRINSICS, THREAD_ARG
from gpushmem.simt.intrinsics.cuda_shims import foreign

__all__ = [
    "INTRINSICS", "THREAD_ARG", "Bitcode", "Facts", "Leaf", "foreign", "generator", "load_field",
    "now", "places", "unseen_polls",
]  # fmt: skip
