"""The engine's embedder: who gives kernels more to call, and is asked when launches need it.

One `Embedder` at a time serves all launches (`embed`). `bind` gives a name that kernels use its
meaning, `adopt` lets objects of a class stand for the functions they have, `suppliers` gives C
functions of other libraries their addresses, and `sharers` say which memory others may write to.
"""

from gpushmem.simt.base.embedder import Embedder, embed
from gpushmem.simt.base.external_functions import suppliers
from gpushmem.simt.compiler.target import adopt, bind
from gpushmem.simt.run.verify import sharers
from gpushmem.simt.run.warm_up import build, warm_up

__all__ = ["Embedder", "adopt", "bind", "build", "embed", "sharers", "suppliers", "warm_up"]
