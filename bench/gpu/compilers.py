"""The same kernels by numba-cuda and by numba-cuda-mlir, on a GPU that has neither.

python bench/gpu/compilers.py make FOLDER [ARCH]    here, where both are; no GPU is needed
python bench/gpu/compilers.py run FOLDER [RESULT]   there: with numpy and cuda.core, and nvshmem4py
                                                    for the kernels that call NVSHMEM

python bench/gpu/compilers.py sizes [RESULT]        what the kernels need by either, as a table

`make` writes a cubin for each kernel and compiler, and the parameters of its launch as gpushmem
packs them for that compiler; in the place of an array's address is its name. `run` launches them,
compares what they leave with NumPy's result, and times both in turns.
"""

import json
import struct
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np

COMPILERS = ("numba-cuda", "numba-cuda-mlir")
N, SIDE, TILE = 1 << 24, 1024, 16
MESSAGE = 1 << 20
TIMED, ROUNDS = 20, 7  # launches between two events; how often


# --- the kernels


def kernels(cuda, shmem):
    """The kernels, by name."""

    def saxpy(a, x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = a * x[i] + y[i]

    def block_sum(x, sums):
        part = cuda.shared.array(256, "float32")
        t = cuda.threadIdx.x
        total = x.dtype.type(0)
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            total += x[i]
        part[t] = total
        cuda.syncthreads()
        half = 128
        while half:
            if t < half:
                part[t] += part[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            sums[cuda.blockIdx.x] = part[0]

    def matmul(a, b, c):
        left = cuda.shared.array((TILE, TILE), "float32")
        right = cuda.shared.array((TILE, TILE), "float32")
        column, row = cuda.grid(2)
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        total = left.dtype.type(0)
        for k in range(0, a.shape[1], TILE):
            left[i, j], right[i, j] = a[row, k + j], b[k + i, column]
            cuda.syncthreads()
            for m in range(TILE):
                total += left[i, m] * right[m, j]
            cuda.syncthreads()
        c[row, column] = total

    def arguments(flag, small, half, single, double, pair, nothing, strided, out):
        """One of each kind of argument."""
        out[0], out[1], out[2] = flag, small, half
        out[3], out[4], out[5], out[6] = single.real, single.imag, double.real, double.imag
        out[7], out[8] = pair[0], pair[1]
        out[9] = strided.size
        if nothing is None:
            out[10] = strided[3, 2]

    def put_signal(dst, src, signal, value, pe):
        if cuda.blockIdx.x == 0:
            shmem.put_signal_block(dst, src, signal, value, shmem.SIGNAL_SET, pe)
            if cuda.threadIdx.x == 0:
                shmem.signal_wait_until(signal, shmem.CMP_GE, value)

    def fetch_add(counter, found, pe):
        i = cuda.grid(1)
        found[i] = shmem.atomic_fetch_add(counter, 1, pe)

    def elements(dst, src, pe):
        i = cuda.grid(1)
        shmem.p(dst[i:], src[i] + shmem.g(src[i:], pe), pe)

    made = locals()
    return {name: made[name] for name in CASES}


# --- their data


def numbers(n, dtype):
    return (np.arange(n) % 1000).astype(dtype)


def saxpy_data():
    x, y = numbers(N, "float32"), numbers(N, "float32")[::-1].copy()
    return (np.float32(2), x, y), {"y": 2 * x + y}, ((N + 255) // 256, 256), 3 * x.nbytes


def block_sum_data():
    x = np.ones(N, "float32")
    return (
        (x, np.zeros(512, "float32")),
        {"sums": np.full(512, N / 512, "float32")},
        (512, 256),
        (x.nbytes),
    )


def matmul_data():
    a = (np.arange(SIDE * SIDE) % 7).astype("float32").reshape(SIDE, SIDE)
    b = (np.arange(SIDE * SIDE) % 5).astype("float32").reshape(SIDE, SIDE)
    blocks = SIDE // TILE
    return (a, b, np.zeros_like(a)), {"c": a @ b}, ((blocks, blocks), (TILE, TILE)), None


def arguments_data():
    base = np.arange(50, dtype="float32").reshape(5, 10)
    given = (
        np.bool_(1), np.int8(-5), np.float16(1.5), np.complex64(1 + 2j), np.complex128(3 - 4j),
        (np.int32(7), np.float64(0.25)), None, base[:, 1:7:2], np.zeros(11),
    )  # fmt: skip
    wanted = [1, -5, 1.5, 1, 2, 3, -4, 7, 0.25, 15, 35]
    return given, {"out": np.array(wanted)}, (1, 1), None


def put_signal_data():
    src = numbers(MESSAGE, "float32")
    given = np.zeros_like(src), src, np.zeros(1, "uint64"), np.uint64(9), np.int64(0)
    return given, {"dst": src, "signal": np.array([9], "uint64")}, (1, 256), 2 * src.nbytes


def fetch_add_data():
    given = np.zeros(1, "int64"), np.zeros(1 << 12, "int64"), np.int64(0)
    return given, {}, (16, 256), None


def elements_data():
    src = numbers(1 << 16, "float32")
    return (np.zeros_like(src), src, np.int64(0)), {"dst": 2 * src}, (256, 256), None


CASES = {
    "saxpy": saxpy_data, "block_sum": block_sum_data, "matmul": matmul_data,
    "arguments": arguments_data, "put_signal": put_signal_data, "fetch_add": fetch_add_data,
    "elements": elements_data,
}  # fmt: skip
WITH_NVSHMEM = ("put_signal", "fetch_add", "elements")


# --- make


def make(folder, arch="sm_90a"):
    from numba import cuda
    from numba.cuda.typing.typeof import Purpose, typeof

    import gpushmem as shmem
    from gpushmem.artifacts.argument_packing import pack, parameters, words_of
    from gpushmem.backends.nvshmem.compile import aot, compiler

    folder.mkdir(parents=True, exist_ok=True)
    about = {}
    for name, function in kernels(cuda, shmem).items():
        given, _, _, _ = CASES[name]()
        argtypes = tuple(typeof(value, Purpose.argument) for value in given)
        parts = dict(zip(function.__code__.co_varnames, given, strict=False))
        arrays = {n: a for n, a in parts.items() if isinstance(a, np.ndarray)}
        places = {a.ctypes.data: n for n, a in arrays.items()}
        for which in COMPILERS:
            made = compiler.compile_kernel(
                function, argtypes, {}, compiler.Arch.of(arch), which=which
            )
            linked = compiler.link(made)
            words = (
                parameters(argtypes, given) if which == COMPILERS[1]
                else words_of(pack(argtypes, given))
            )  # fmt: skip
            file = f"{name}.{which}.cubin"
            (folder / file).write_bytes(linked.code)
            about[f"{name} {which}"] = {
                "file": file, "entry": made.entry, "bytes": len(linked.code),
                "needs": vars(aot.needs_of(linked.log, made.entry)),
                "parameters": [_shown(word, places) for word in words],
            }  # fmt: skip
            print(name, which, about[f"{name} {which}"]["needs"])
    (folder / "about.json").write_text(json.dumps(about, indent=1))


def _shown(word, places):
    if isinstance(word, complex):
        return {"complex": [word.real, word.imag]}
    return {"array": places[word]} if word in places else word


# --- sizes

HEADER = "| kernel | registers | stack | spills | bytes of its own code |"
LINE = "| {what} | {registers} | {stack} | {spills} | {code} |"


def sizes(result="bench/results/gpu-compilers.json"):
    """Each kernel of `make`, and of the rows' tests, by both: the numbers beside each other."""
    from numba import cuda
    from numba.cuda.typing.typeof import Purpose, typeof

    sys.path.insert(1, str(Path(__file__).parents[2]))
    from harness import machine

    import gpushmem as shmem
    from tests.nvshmem.test_machine_code import PAIRS

    wanted = {}
    for name, function in kernels(cuda, shmem).items():
        given, _, _, _ = CASES[name]()
        wanted[name] = function, tuple(typeof(value, Purpose.argument) for value in given)
    wanted |= {f"`{name}`": (pair[0], pair[2]) for name, pair in PAIRS.items()}
    by = [_needs(wanted, which) for which in COMPILERS]
    rows = []
    for name in wanted:
        a, b = (found[name] for found in by)
        rows.append({"what": name} | {key: f"{a[key]}, {b[key]}" for key in a})
    about = machine() | {"numba-cuda-mlir": version("numba-cuda-mlir"), "arch": "sm_90"}
    Path(result).write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    print(HEADER, *(LINE.format(**row) for row in rows), sep="\n")


def _needs(wanted, which):
    """What kernels need, linked to one object."""
    from gpushmem.backends.nvshmem.compile import aot, compiler

    arch = compiler.Arch.of("sm_90")
    made = {
        name: compiler.compile_kernel(function, argtypes, {}, arch, which=which)
        for name, (function, argtypes) in wanted.items()
    }
    linked = compiler.link_all(list(made.values()))
    lengths = _lengths(linked.code)
    found = {}
    for name, kernel in made.items():
        needs = aot.needs_of(linked.log, kernel.entry)
        found[name] = {
            "registers": needs.registers, "stack": needs.stack,
            "spills": needs.spill_stores + needs.spill_loads,
            "code": lengths[f".text.{kernel.entry}"],
        }  # fmt: skip
    return found


def _lengths(elf):
    """The sections of an ELF file: name -> bytes."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    count, names = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + 64 * k) for k in range(count)]
    texts = headers[names][4]
    found = {}
    for name, _, _, _, _, size in headers:
        end = elf.index(b"\0", texts + name)
        found[elf[texts + name : end].decode()] = size
    return found


# --- run


class Machine:
    """A GPU, with memory from CUDA or, symmetric, from NVSHMEM."""

    def __init__(self):
        from cuda.core import Device

        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.nvshmem = None

    def start_nvshmem(self):
        import nvshmem.core

        unique_id = nvshmem.core.get_unique_id()
        nvshmem.core.init(
            device=self.device, uid=unique_id, rank=0, nranks=1, initializer_method="uid"
        )
        self.nvshmem = nvshmem.core

    def place(self, array, symmetric):
        """A copy of the memory under an array; returns what keeps it, and the element's address."""
        base = array if array.base is None else array.base
        while base.base is not None:
            base = base.base
        base = np.asarray(base)
        if symmetric:
            kept = self.nvshmem.buffer(max(base.nbytes, 16))
        else:
            kept = self.device.allocate(max(base.nbytes, 16), stream=self.stream)
        start = int(kept.handle)
        self._copy(start, base.ctypes.data, base.nbytes)
        return kept, start + array.ctypes.data - base.ctypes.data

    def fetch(self, address, like):
        found = np.empty_like(like)
        self.stream.sync()
        self._copy(found.ctypes.data, address, found.nbytes)
        return found

    def _copy(self, to, source, nbytes):
        from cuda.bindings import driver

        self.stream.sync()
        (status,) = driver.cuMemcpy(to, source, nbytes)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"copying {nbytes} bytes: {status}")


def run(folder, result=None):
    about = json.loads((folder / "about.json").read_text())
    machine = Machine()
    found = {"gpu": machine.device.name, "kernels": []}
    try:
        machine.start_nvshmem()
    except Exception as error:
        print(f"NVSHMEM cannot be started ({error}): its kernels are left out")
    failed = 0
    for name in CASES:
        if name in WITH_NVSHMEM and machine.nvshmem is None:
            continue
        try:
            row = measure(machine, folder, name, about)
        except Exception as error:
            row = {"kernel": name, "error": f"{type(error).__name__}: {error}"}
        failed += not all(row.get("right", {"": False}).values())
        found["kernels"].append(row)
        print(json.dumps(row), flush=True)
    target = Path(result) if result else folder / "result.json"
    target.write_text(json.dumps(found, indent=1))
    print(f"{target}: {len(found['kernels']) - failed} right, {failed} not")
    sys.exit(failed > 0)


def measure(machine, folder, name, about):
    from cuda.core import LaunchConfig, ObjectCode, launch

    _, _, (grid, block), nbytes = CASES[name]()
    config, ready, right, kept = LaunchConfig(grid=grid, block=block), {}, {}, []
    for which in COMPILERS:
        known = about[f"{name} {which}"]
        code = ObjectCode.from_cubin((folder / known["file"]).read_bytes())
        kernel = code.get_kernel(known["entry"])
        if name in WITH_NVSHMEM:
            core = machine.nvshmem
            core.library_init(core.NvshmemKernelObject.from_obj(code))
        given, wanted, _, _ = CASES[name]()
        names = [p["array"] for p in known["parameters"] if isinstance(p, dict) and "array" in p]
        arrays = dict(zip(dict.fromkeys(names), (a for a in given if _is_array(a)), strict=True))
        places = {n: machine.place(a, name in WITH_NVSHMEM) for n, a in arrays.items()}
        kept += [code, places]
        words = [_parameter(p, places) for p in known["parameters"]]
        ready[which] = partial(launch, machine.stream, config, kernel, *words)
        ready[which]()
        left = {n: machine.fetch(places[n][1], arrays[n]) for n in arrays if n in wanted}
        right[which] = all(np.allclose(left[n], wanted[n]) for n in wanted)
        if name == "fetch_add":  # each number once
            numbers_of = machine.fetch(places["found"][1], arrays["found"])
            right[which] = bool((np.sort(numbers_of) == np.arange(numbers_of.size)).all())
    times = {which: [] for which in COMPILERS}
    for _ in range(ROUNDS):
        for which in COMPILERS:
            times[which].append(_microseconds(machine, ready[which]))
    for place in kept[1::2]:
        for buffer, _ in place.values():
            if name in WITH_NVSHMEM:
                machine.nvshmem.free(buffer)
            else:
                buffer.close(machine.stream)
    micro = {which: round(median(times[which]), 3) for which in COMPILERS}
    row = {"kernel": name, "right": right, "us": micro}
    if nbytes:
        row["GB/s"] = {which: round(nbytes / micro[which] / 1e3, 1) for which in COMPILERS}
    return row


def _is_array(value):
    return isinstance(value, np.ndarray)


def _parameter(shown, places):
    if not isinstance(shown, dict):
        return shown
    return places[shown["array"]][1] if "array" in shown else complex(*shown["complex"])


def _microseconds(machine, go):
    from cuda.bindings import driver

    (_, began), (_, ended) = driver.cuEventCreate(0), driver.cuEventCreate(0)
    driver.cuEventRecord(began, int(machine.stream.handle))
    for _ in range(TIMED):
        go()
    driver.cuEventRecord(ended, int(machine.stream.handle))
    driver.cuEventSynchronize(ended)
    _, milliseconds = driver.cuEventElapsedTime(began, ended)
    return milliseconds * 1e3 / TIMED


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "sizes":
        sys.path.insert(1, str(Path(__file__).parents[1]))
        sizes(*given)
    else:
        {"make": make, "run": run}[what](Path(given[0]), *given[1:])
