"""What the package calls of cuBLASLt: products, in NumPy, when the stream comes to them.

It takes what cublasLt.h says: matrices by columns, attributes with their sizes in bytes.
"""

import itertools
import re
from functools import partial

import ml_dtypes
import numpy as np

from tests.nvshmem.emulation.stream_ops import device_bytes, on_stream

CODES = ml_dtypes.float8_e4m3fn
TYPES = {28: CODES, 2: np.float16, 14: ml_dtypes.bfloat16, 0: np.float32, 1: np.float64}
SIZES = {
    "MatmulDesc": {3: 4, 4: 4, 17: 8, 18: 8, 31: 4, 32: 4},
    "MatrixLayout": {5: 4, 6: 8},
    "MatmulPreference": {1: 8, 5: 4, 6: 4, 7: 4, 8: 4},
}
MOST = 4 << 20  # bytes of a workspace that a product may take


class Library:
    """Its functions, as ctypes calls them: `cublasLtCreate` is `create`. Handles are numbers."""

    def __init__(self):
        self._made, self._numbers = {}, itertools.count(1)
        self.products = []  # (dtype, m, n, k) of each in the transposed problem

    def __getattr__(self, name):
        of_library = name.removeprefix("cublasLt")
        if name.endswith("SetAttribute"):
            return partial(self._set, SIZES[of_library.removesuffix("SetAttribute")])
        return self.__getattribute__(re.sub(r"(?<!^)(?=[A-Z])", "_", of_library).lower())

    def _make(self, out, **what):
        out._obj.value = number = next(self._numbers)
        self._made[number] = what
        return 0

    def create(self, out):
        return self._make(out)

    def matmul_desc_create(self, out, compute, scale):
        if (compute, scale) not in ((68, 0), (70, 1)):
            return 7
        return self._make(out, compute=compute)

    def matmul_preference_create(self, out):
        return self._make(out)

    def matmul_preference_destroy(self, made):
        del self._made[made.value]
        return 0

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy

    def matrix_layout_create(self, out, kind, rows, columns, lead):
        if lead.value < rows.value:
            return 7
        return self._make(
            out, dtype=TYPES[kind], shape=(rows.value, columns.value), lead=lead.value
        )

    def _set(self, sizes, owner, attribute, value, size):
        if size.value != sizes[attribute]:
            return 7
        self._made[owner.value][attribute] = value._obj.value
        return 0

    def matmul_algo_get_heuristic(
        self, handle, operation, a, b, c, d, preference, wanted, found, number
    ):
        most = self._made[preference.value]
        if min(most[at] for at in (5, 6, 7, 8)) < 2 or most[1] < MOST:
            return 15
        how, codes = self._made[operation.value], [self._made[x.value] for x in (a, b)]
        if codes[0]["dtype"] == CODES:
            turned = how.get(3) and not how.get(4)
            aligned = min(most[5], most[6]) >= 16 and not any(x["lead"] % 16 for x in codes)
            if not turned or not aligned or (how[31], how[32]) not in ((0, 0), (3, 3)):
                return 15
        found._obj.algorithm[0] = most[5] << 16 | most[6]
        found._obj.workspace, number._obj.value = MOST, 1
        return 0

    def matmul(
        self, handle, operation, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algorithm,
        workspace, size, stream,
    ):  # fmt: skip
        device_bytes(workspace.value, size.value, "workspace")
        how = self._made[operation.value]
        left, right, sums = (self._made[x.value] for x in (of_a, of_b, of_d))
        for address, power in ((a, algorithm._obj[0] >> 16), (b, algorithm._obj[0] & 0xFFFF)):
            if address.value % power:
                return 7
        one, start = alpha._obj.value, beta._obj.value
        scales = [_scale(how, k, size) for k, size in enumerate(sums["shape"]) if 17 + k in how]

        def action():
            x = _matrix(a.value, left).astype("float64")
            y = _matrix(b.value, right).astype("float64")
            to = _matrix(d.value, sums)
            factor = one if not scales else one * scales[0][:, None] * scales[1]
            turned = (z.swapaxes(1, 2) if how.get(3 + k) else z for k, z in enumerate((x, y)))
            product = factor * np.matmul(*turned)
            to[...] = product + (start * to.astype("float64") if start else 0)

        self.products.append((sums["dtype"], *sums["shape"]))
        on_stream(stream.value, action)
        return 0


def _scale(how, which, size):
    """Those of the matrix a or b, in which `size` lines are multiplied."""
    count = size if how[31 + which] == 3 else 1
    return device_bytes(how[17 + which], 4 * count, "scale").view("float32")


def _matrix(address, layout):
    """All of a batch: (number, rows, columns)."""
    (rows, columns), number, apart = layout["shape"], layout[5], layout[6]
    dtype, lead = np.dtype(layout["dtype"]), layout["lead"]
    nbytes = ((number - 1) * apart + (columns - 1) * lead + rows) * dtype.itemsize
    flat = device_bytes(address, nbytes, "matmul").view(dtype)
    strides = (apart * dtype.itemsize, dtype.itemsize, lead * dtype.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (number, rows, columns), strides)
