"""What kernels on GPUs add to the trace, when they are compiled for it: C++, and calls of it.

The events are those of the cpu backend (`trace.operation_events`), in a ring of the same layout in
the GPU's memory; the host copies them from there (`host_tracing`). In the warp and block forms of
an operation one thread records. A block is an event, too: `instrument` adds it to the kernel's own
code, where the kernel begins and before each return, so the kernel is as it was in all else.

An event is written by plain stores that nobody waits for. Bit LAP of its kind says in which round
of the ring: who reads tells by it what has been written from what was there before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.cudaimpl import registry

from gpushmem.backends.codegen import words_for
from gpushmem.backends.operation_calls import Operation
from gpushmem.ops.row import BLOCK, THREAD, WARP, WORDS, Op
from gpushmem.trace.operation_events import of_call, of_wait
from gpushmem.trace.ring import BLOCK as BLOCK_KIND
from gpushmem.trace.ring import EVENT, KIND_OF, NO_PE, PLACES, RANGE

__all__ = [
    "FUNCTIONS", "GLOBAL", "LAP", "MACHINE", "MOST_BLOCKS", "SOURCE", "TracedOperation", "about",
    "compiling", "instrument", "is_called",
]  # fmt: skip

GLOBAL = "gpushmem_trace"  # of the code: the address of the ring
LAP = 1 << 15
MOST_BLOCKS = 8192  # of a grid that record themselves; of a larger one every k-th does
SCOPES = {THREAD: 0, WARP: 1, BLOCK: 2}
i64, i32 = ir.IntType(64), ir.IntType(32)

# What PTX has, and C++ has not. The clock is read where the program is read, and in its order.
MACHINE = """
static __device__ word clock_now() {
    word now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
    return now;
}
static __device__ word grid_number() {
    word number;
    asm("mov.u64 %0, %gridid;" : "=l"(number));
    return number;
}
static __device__ word take(word at) { return atomicAdd((unsigned long long *)at, 1ULL); }
static __device__ word look(word at) {
    word found;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(found) : "l"(at) : "memory");
    return found;
}
static __device__ void write(word at, word a) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" :: "l"(at), "l"(a) : "memory");
}
static __device__ void write(word at, word a, word b) {
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};"
                 :: "l"(at), "l"(a), "l"(b) : "memory");
}
"""
# In the order of EVENT: two words at a time. MOST is a power of two.
EVENTS = f"""
__device__ word {GLOBAL};
static __device__ unsigned thread_number() {{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}}
static __device__ unsigned block_number() {{
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}}
static __device__ bool is_recording(int scope) {{
    if (scope == {SCOPES[THREAD]}) return true;
    return thread_number() % (scope == {SCOPES[WARP]} ? 32 : 1024) == 0;
}}
static __device__ word append(
    word kind, word pe, word at, word value, word nbytes, word began, word ended, word site
) {{
    word ring = {GLOBAL}, number = take(ring + {PLACES["n"]});
    word most = look(ring + {PLACES["most"]}), lap = number & most ? 0 : {LAP};
    word here = look(ring + {PLACES["events"]}) + (number & (most - 1)) * {EVENT.itemsize};
    write(here, began, ended);
    write(here + 16, site, at);
    write(here + 32, value, nbytes);
    write(
        here + 48,
        kind | lap | (word)thread_number() << 16 | pe << 32,
        (grid_number() & 0xffffffff) | (word)block_number() << 32
    );
    return number;
}}
#define EVENT extern "C" __device__
EVENT word gpushmem_trace_now() {{ return clock_now(); }}
EVENT void gpushmem_trace_note(
    int scope, word kind, word pe, word at, word value, word nbytes, word began, word site
) {{
    if (is_recording(scope)) append(kind, pe, at, value, nbytes, began, clock_now(), site);
}}
EVENT word gpushmem_trace_open(
    int scope, word kind, word at, word value, word nbytes, word site
) {{
    return is_recording(scope)
        ? append(kind, {NO_PE}, at, value, nbytes, clock_now(), 0, site) : -1;
}}
EVENT void gpushmem_trace_close(word number) {{
    if (number < 0) return;
    word ring = {GLOBAL}, most = look(ring + {PLACES["most"]});
    if (look(ring + {PLACES["n"]}) - number <= most)
        write(
            look(ring + {PLACES["events"]}) + (number & (most - 1)) * {EVENT.itemsize} + 8,
            clock_now()
        );
}}
EVENT word gpushmem_trace_begin(word kernel) {{
    if (thread_number() != 0) return -1;
    word blocks = (word)gridDim.x * gridDim.y * gridDim.z, block = block_number();
    word step = (blocks + {MOST_BLOCKS - 1}) / {MOST_BLOCKS};
    if (step > 1 && block % step != 0) return -1;
    word threads = blockDim.x * blockDim.y * blockDim.z;
    return append({BLOCK_KIND}, {NO_PE}, blocks, kernel, threads, clock_now(), 0, 0);
}}
"""
SOURCE = f"typedef long long word;\n{MACHINE}{EVENTS}"
FUNCTIONS = {
    "now": ir.FunctionType(i64, []),
    "note": ir.FunctionType(ir.VoidType(), [i32, *[i64] * 7]),
    "open": ir.FunctionType(i64, [i32, *[i64] * 5]),
    "close": ir.FunctionType(ir.VoidType(), [i64]),
    "begin": ir.FunctionType(i64, [i64]),
}
CALLED = re.compile(r'call [^@\n]*@"?gpushmem_trace_(\w+)"?\(([^\n]*)\)')
NUMBER = re.compile(r"i64 (\d+)(?=,|$)")


def _number(text: str) -> int:
    """A number for a text, the same in every process: compiled code is kept."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1 or 1


_texts: dict[tuple[str, int], str] = {}  # of all that this process has compiled
RANGES = "trace_range_start", "trace_range_end"
_on: list[bool] = [False]


@contextmanager
def compiling(traced: bool) -> Iterator[None]:
    """Whether operations that are lowered in this block are traced.

    A process has one or the other: numba-cuda keeps the device functions that it has compiled.
    """
    before, _on[0] = _on[0], traced
    try:
        yield
    finally:
        _on[0] = before


class TracedOperation(Operation):
    """An operation that is traced, when kernels are."""

    def get_impl_key(self, sig: Any) -> Any:
        """That of `_traced`, which generates a call of the operation's own code."""
        if _on[0] and (self.op.is_event or self.op.base in RANGES):
            return self._traced_key
        return super().get_impl_key(sig)

    @property
    def _traced_key(self) -> Any:
        key = _keys.get(self.op.name)
        if key is None:
            key = _keys[self.op.name] = "gpushmem_traced", self.op.name

            @registry.lower(key, types.VarArg(types.Any))
            def traced(context: Any, builder: Any, sig: Any, args: Any, loc: Any = None) -> Any:
                return self._generate(context, builder, sig, args, loc)

        return key

    def _generate(self, context: Any, builder: Any, sig: Any, args: Any, loc: Any) -> Any:
        call = Call(self.op, context, builder, sig, args)
        kind, site = KIND_OF[self.op.name], i64(_site(context, loc))
        scope, waits = i32(SCOPES[self.op.scope]), self.op.waits
        if self.op.base in RANGES:
            return _range(call, scope, site)
        events = [of_wait(call)] if waits else of_call(call)
        if waits:
            token = _call(builder, "open", [scope, i64(kind), *events[0], site])
        else:
            token = _call(builder, "now", [])
        result = context.get_function(self._callee, sig)(builder, args, loc)
        if waits:
            _call(builder, "close", [token])
        for words in events if not waits else ():
            _call(builder, "note", [scope, i64(kind), *words, token, site])
        return result


_keys: dict[str, tuple[str, str]] = {}


def _site(context: Any, loc: Any) -> int:
    """The number of the line that is being compiled."""
    function = context.active_code_library.name.rpartition(".")[2]
    return _keep("site", f"{Path(loc.filename).name}:{loc.line} in {function}")


def _keep(what: str, text: str) -> int:
    """The number of a text, which is kept with the code."""
    number = _number(text)
    _texts[what, number] = text
    return number


def _range(call: Call, scope: Any, site: Any) -> Any:
    """The beginning of a range, which returns the number of its event plus 1, or its end."""
    builder = call.builder
    if "name" not in call.argtypes:
        _call(builder, "close", [builder.sub(call.integer("number"), i64(1))])
        return call.context.get_dummy_value()
    name = i64(_keep("name", call.argtypes["name"].literal_value))
    words = [scope, i64(RANGE), i64(-1), name, i64(0), site]
    return builder.add(_call(builder, "open", words), i64(1))


class Call:
    """One call of an operation in a kernel, as `trace.operation_events` looks at it."""

    def __init__(self, op: Op, context: Any, builder: Any, sig: Any, args: Any) -> None:
        self.op, self.context, self.builder = op, context, builder
        self.argtypes = dict(zip(op.params, sig.args, strict=False))
        self.values = dict(zip(op.params, args, strict=False))

    def integer(self, name: str) -> Any:
        """An argument as an int64."""
        return self.context.cast(self.builder, self.values[name], self.argtypes[name], types.int64)

    def offset(self, name: str) -> Any:
        """An array's address: where the heap is, the host knows."""
        return self.builder.ptrtoint(self._array(name).data, i64)

    def place(self, name: str) -> list[Any]:
        """Whose memory an array is in is not looked up."""
        return [i64(NO_PE), i64(-1)]

    def nbytes(self, effect: Any) -> Any:
        """The bytes that an effect covers, from the array's address."""
        if effect.extent == "0":
            count = i64(1)
        elif effect.extent == "stride":
            n, stride = self.integer("nelems"), self.integer(f"{effect.array}_stride")
            reach = self.builder.add(self.builder.mul(self.builder.sub(n, i64(1)), stride), i64(1))
            none = self.builder.icmp_signed("==", n, i64(0))
            count = self.builder.select(none, i64(0), reach)
        elif effect.kind in WORDS:
            data = self._array(effect.extent)
            nbytes = self.builder.mul(data.nitems, data.itemsize)
            count = words_for(self.builder, nbytes, effect.kind)
        else:
            extent = effect.array if effect.extent == "parts" else effect.extent
            count = self._array(extent).nitems
        return self.builder.mul(count, self._array(effect.array).itemsize)

    def _array(self, name: str) -> Any:
        return self.context.make_array(self.argtypes[name])(
            self.context, self.builder, self.values[name]
        )


def _call(builder: Any, name: str, given: list[Any]) -> Any:
    function = cgutils.get_or_insert_function(
        builder.module, FUNCTIONS[name], f"gpushmem_trace_{name}"
    )
    return builder.call(function, given)


def instrument(kernel: Any) -> None:
    """Let each block of a kernel, an LLVM function, record when it begins and ends.

    What ends is its thread 0: to wait for the others would change the program.
    """
    builder = ir.IRBuilder(kernel.entry_basic_block)
    builder.position_at_start(kernel.entry_basic_block)
    number = _call(builder, "begin", [i64(_number(kernel.name))])
    for block in kernel.blocks:
        if isinstance(block.terminator, ir.Ret):
            builder.position_before(block.terminator)
            _call(builder, "close", [number])


def is_called(llvm: Iterable[str]) -> bool:
    """Whether modules, given as LLVM's text, are traced."""
    return any("@gpushmem_trace_" in text or '@"gpushmem_trace_' in text for text in llvm)


def about(llvm: Iterable[str], entry: str, name: str) -> dict[str, Any]:
    """What numbers in the events of a kernel mean; and whether it waits."""
    calls = [call for text in llvm for call in CALLED.findall(text)]
    texts, waits = set(), False
    for what, given in calls:
        if what not in ("note", "open"):
            continue
        numbers = [int(number) for number in NUMBER.findall(given)]  # without what is not constant
        texts.add(("site", numbers[-1]))
        is_range = what == "open" and numbers[0] == RANGE
        if is_range:
            texts.add(("name", numbers[1]))
        waits |= what == "open" and not is_range
    return {
        "kernel": _number(entry), "name": name, "waits": waits,
        "texts": [[*key, _texts[key]] for key in sorted(texts)],
    }  # fmt: skip
