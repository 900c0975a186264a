"""Functions of LLVM bitcode for GPUs, called from kernels: instructions, memory, failures."""

import os
import subprocess
import sys
import traceback
from functools import wraps

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import cuda
from numba.cuda import types

from gpushmem.errors import BackendUnavailable, KernelError
from gpushmem.native.memory import i8p, intrinsic
from gpushmem.simt.base.llvm_contexts import new_context
from gpushmem.simt.bitcode.extraction import Facts
from gpushmem.simt.bitcode.library import Bitcode
from tests.simt.conftest import launch


def apart(test):
    """Run a test in a copy of this process: what it registers with Numba goes with that."""

    @wraps(test)
    def run(*args, **kwargs):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                test(*args, **kwargs)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    return run


KINDS = {"i32": types.int32, "i64": types.int64, "i16": types.int16}
HEAD = 'target triple = "nvptx64-nvidia-cuda"\n'


def library(folder, text, facts=None):
    path = folder / "library.bc"
    path.write_bytes(llvm.parse_assembly(HEAD + text, new_context()).as_bitcode())
    return Bitcode(path, facts)


def caller(bitcode, name, result, *arguments):
    """A function for kernels: a call of a library's function; "ptr" takes an array."""

    def call(typingctx, *given):
        def codegen(context, builder, sig, args):
            values = []
            for kind, typ, value in zip(arguments, sig.args, args, strict=True):
                if kind == "ptr":
                    data = context.make_array(typ)(context, builder, value).data
                    values.append(builder.bitcast(data, i8p))
                else:
                    values.append(value)
            made = bitcode.call(builder, name, values)
            return context.get_dummy_value() if result == "void" else made

        returns = types.void if result == "void" else KINDS[result]
        wanted = [g if k == "ptr" else KINDS[k] for k, g in zip(arguments, given, strict=True)]
        return returns(*wanted), codegen

    names = ", ".join(f"a{k}" for k in range(len(arguments)))
    scope = {"call": call}
    exec(f"def {name}(typingctx, {names}):\n    return call(typingctx, {names})", scope)
    return intrinsic(scope[name])


def asm(text, constraints, result, *arguments, effects=""):
    """A function that is one piece of assembly."""
    names = ", ".join(f"{kind} %a{k}" for k, kind in enumerate(arguments))
    returns = "ret void" if result == "void" else f"ret {result} %r"
    to = "" if result == "void" else "%r = "
    return f"""
define {result} @f({names}) {{
  {to}call {result} asm {effects} "{text}", "{constraints}"({names})
  {returns}
}}"""


@pytest.mark.parametrize(
    ("text", "constraints", "kinds", "args", "wanted"),
    [
        ("bfind.shiftamt.u32 $0, $1;", "=r,r", ("i32", "i32"), [1], 31),
        ("bfind.shiftamt.u32 $0, $1;", "=r,r", ("i32", "i32"), [0], -1),
        ("shf.r.wrap.b32 $0, $1, $2, $3;", "=r,r,r,r", ("i32", *["i32"] * 3), [8, 1, 36], 1 << 28),
        ("mov.u32 $0, %laneid;", "=r", ("i32",), [], 0),
        ("isspacep.local $0, $1;", "=b,l", ("i1", "ptr"), [None], 0),
        ("{add.f16 $0,$1,$2;\\0A}", "=h,h,h", ("i16", "i16", "i16"), [0x3C00, 0x4000], 0x4200),
        ("{.reg .b16 c;\\0A  mov.b16 c, 0x8000U;\\0A  fma.rn.bf16 $0,$1,$2,c;}\\0A", "=h,h,h",
         ("i16", "i16", "i16"), [0x4000, 0x4040], 0x40C0),
        ("{ .reg .pred p;\\0A  setp.lt.f16  p, $1, $2;\\0A  selp.u16 $0, 1, 0, p;}", "=h,h,h",
         ("i16", "i16", "i16"), [0x3C00, 0x4000], 1),
    ],
)  # fmt: skip
@apart
def test_instructions(tmp_path, text, constraints, kinds, args, wanted):
    result, *arguments = kinds
    body = asm(text, constraints, result, *arguments)
    if result == "i1":
        body = body.replace("define i1 @f", "define i32 @f").replace(
            "ret i1 %r", "%w = zext i1 %r to i32\n  ret i32 %w"
        )
    function = caller(library(tmp_path, body), "f", "i32" if result == "i1" else result, *arguments)
    names = ", ".join(f"a{k}" for k in range(len(args)))
    scope = {"function": function}
    exec(f"def kernel(out, {names}):\n    out[0] = function({names})", scope)
    given = [np.zeros(1, np.int64) if a is None else getattr(np, KINDS[k].name)(a)
             for k, a in zip(arguments, args, strict=True)]  # fmt: skip
    out = np.zeros(1, np.int64)
    launch(scope["kernel"], 1, 1, out, *given)
    assert out[0] == wanted


@pytest.mark.parametrize(
    ("text", "constraints", "kinds", "before", "args", "after", "returned"),
    [
        ("ld.relaxed.sys.global.L1::no_allocate.b32 $0, [$1];", "=r,l", ("i32", "ptr"),
         [7, 0], [], [7, 0], 7),
        ("st.release.gpu.b32 [$0],$1;", "l,r,~{memory}", ("void", "ptr", "i32"),
         [7, 8], [5], [5, 8], None),
        ("st.b8 [$0], $1;", "l,h", ("void", "ptr", "i16"), [-1, 8], [3], [-253, 8], None),
        ("st.volatile.global.v4.u32 [$0], {$1,$2,$3,$4};", "l,r,r,r,r",
         ("void", "ptr", *["i32"] * 4), [0] * 4, [1, 2, 3, 4], [1, 2, 3, 4], None),
        ("atom.add.relaxed.gpu.u32 $0,[$1],$2;", "=r,l,r,~{memory}", ("i32", "ptr", "i32"),
         [7, 8], [5], [12, 8], 7),
        ("atom.max.acquire.gpu.u32 $0,[$1],$2;", "=r,l,r,~{memory}", ("i32", "ptr", "i32"),
         [7, 8], [-1], [-1, 8], 7),
        ("atom.cas.acquire.gpu.b32 $0,[$1],$2,$3;", "=r,l,r,r,~{memory}",
         ("i32", "ptr", "i32", "i32"), [7, 8], [7, 9], [9, 8], 7),
    ],
)  # fmt: skip
@apart
def test_memory(tmp_path, text, constraints, kinds, before, args, after, returned):
    result, *arguments = kinds
    bitcode = library(tmp_path, asm(text, constraints, result, *arguments, effects="sideeffect"))
    function = caller(bitcode, "f", result, *arguments)
    names = ", ".join(["memory", *(f"a{k}" for k in range(len(args)))])
    scope = {"function": function}
    to = "" if result == "void" else "out[0] = "
    exec(f"def kernel(out, {names}):\n    {to}function({names})", scope)
    memory, out = np.array(before, np.int32), np.zeros(1, np.int64)
    given = [getattr(np, KINDS[k].name)(a) for k, a in zip(arguments[1:], args, strict=True)]
    launch(scope["kernel"], 1, 1, out, memory, *given)
    assert memory.tolist() == after
    assert returned is None or out[0] == returned


@apart
def test_a_loop_that_waits_lets_the_other_threads_run(tmp_path):
    text = """
define i64 @f(ptr %flag) {
  br label %again
again:
  %seen = load volatile i64, ptr %flag, align 8
  %no = icmp eq i64 %seen, 0
  br i1 %no, label %again, label %done
done:
  ret i64 %seen
}"""
    await_ = caller(library(tmp_path, text), "f", "i64", "ptr")

    def kernel(flag, out):
        if cuda.threadIdx.x == 0:
            out[0] = await_(flag)
        elif cuda.threadIdx.x == 1:
            flag[0] = 5

    flag, out = np.zeros((2, 1), np.int64)
    assert launch(kernel, 1, 2, flag, out) == "fibers"
    assert out[0] == 5


@apart
def test_threads_of_a_block_meet(tmp_path):
    text = """
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
define void @f() {
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  ret void
}"""
    meet = caller(library(tmp_path, text), "f", "void")

    def kernel(x, out):
        i = cuda.threadIdx.x
        x[i] = i
        meet()
        out[i] = x[(i + 1) % 64]

    x, out = np.zeros((2, 64), np.int64)
    launch(kernel, 1, 64, x, out)
    assert out.tolist() == [*range(1, 64), 0]


@apart
def test_an_assertion_names_its_text_and_the_users_line(tmp_path):
    text = """
@text = private constant [6 x i8] c"x > 0\\00"
@file = private constant [11 x i8] c"src/few.cu\\00"
@function = private constant [2 x i8] c"g\\00"
declare void @__assertfail(ptr, ptr, i32, ptr, i64)
define void @f(i32 %x) {
  %bad = icmp sle i32 %x, 0
  br i1 %bad, label %fails, label %holds
fails:
  call void @__assertfail(ptr @text, ptr @file, i32 12, ptr @function, i64 1)
  unreachable
holds:
  ret void
}"""
    check = caller(library(tmp_path, text), "f", "void", "i32")

    def kernel(x):
        check(x[cuda.threadIdx.x])

    launch(kernel, 1, 4, np.ones(4, np.int32))
    where = r"thread \(2, 0, 0\), test_bitcode\.py:\d+ in kernel"
    said = where + r": assertion `x > 0` failed \(few\.cu:12 in g\)"
    with pytest.raises(KernelError, match=said):
        launch(kernel, 1, 4, np.array([1, 1, 0, 1], np.int32))


@apart
def test_branches_that_a_known_constant_never_takes_are_left_out(tmp_path):
    text = """
@state = addrspace(4) externally_initialized constant [4 x i32] zeroinitializer, align 8
declare i32 @unknown(i32)
define i32 @f(i32 %x) {
  %which = load i32, ptr STATE, align 8
  %far = icmp eq i32 %which, 1
  br i1 %far, label %other, label %here
other:
  %y = call i32 @unknown(i32 %x)
  ret i32 %y
here:
  ret i32 %x
}"""
    place = (
        "getelementptr inbounds nuw (i8, ptr addrspacecast (ptr addrspace(4) @state to ptr), i64 8)"
    )
    text, facts = text.replace("STATE", place), Facts({("state", 8): 0})
    same = caller(library(tmp_path, text, facts), "f", "i32", "i32")

    def kernel(out):
        out[0] = same(np.int32(3))

    out = np.zeros(1, np.int64)
    launch(kernel, 1, 1, out)
    assert out[0] == 3


@apart
def test_functions_that_are_seldom_called_are_read_when_one_is(tmp_path):
    """One that a usual one calls is one of these, too."""
    text = "".join(
        f"define i32 @{name}(i32 %x) {{\n  %y = {value}\n  ret i32 %y\n}}\n"
        for name, value in (
            ("sum_of", "call i32 @usual(i32 %x)"), ("sum_in", "add i32 %x, 1"),
            ("usual", "call i32 @sum_in(i32 %x)"),
        )
    )  # fmt: skip
    bitcode = library(tmp_path, text, Facts(seldom="sum_.*"))
    read = bitcode._source.__dict__
    functions = [caller(bitcode, name, "i32", "i32") for name in ("usual", "sum_of")]

    def launched(function):
        def kernel(out):
            out[0] = function(np.int32(3))

        out = np.zeros(1, np.int64)
        launch(kernel, 1, 1, out)
        return out[0]

    assert launched(functions[0]) == 4
    assert {*read["usual"]} == {"@usual", "@sum_in"}
    assert "texts" not in read
    assert launched(functions[1]) == 4
    assert {*read["texts"]} == {"@usual", "@sum_in", "@sum_of"}


@apart
def test_assembly_that_is_not_known_is_named(tmp_path):
    bitcode = library(tmp_path, asm("vadd4.u32.u32.u32 $0, $1, $1, $1;", "=r,r", "i32", "i32"))
    function = caller(bitcode, "f", "i32", "i32")

    def kernel(out):
        out[0] = function(np.int32(3))

    with pytest.raises(BackendUnavailable, match=r"`vadd4\.u32\.u32\.u32 \$0, \$1, \$1, \$1;`"):
        launch(kernel, 1, 1, np.zeros(1, np.int64))


@apart
def test_what_a_library_does_not_have_is_named(tmp_path):
    bitcode = library(tmp_path, "define void @f() {\n  ret void\n}")
    with pytest.raises(BackendUnavailable, match=r"library\.bc has no function g"):
        bitcode.function("g")
    with pytest.raises(BackendUnavailable, match=r"cannot read .*none"):
        Bitcode(tmp_path / "none").function("f")
    (tmp_path / "text").write_text("no bitcode")
    with pytest.raises(BackendUnavailable, match="text is not LLVM bitcode"):
        Bitcode(tmp_path / "text").function("f")


# --- functions that are declared with `cuda.declare_device`

ROTATED = """
define double @twice(double %x) {
  %y = fmul double %x, 2.0
  ret double %y
}
define i32 @lane_of(ptr %result, ptr, ptr, i64 %n, i64, ptr %x, i64, i64) {
  %lane = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %wide = zext i32 %lane to i64
  %last = sub i64 %n, 1
  %at = sub i64 %last, %wide
  %place = getelementptr double, ptr %x, i64 %at
  %found = load double, ptr %place
  store double %found, ptr %result
  ret i32 0
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
"""


@pytest.mark.parametrize("suffix", [".bc", ".cu", ".ltoir"])
@apart
def test_declared_functions_come_from_bitcode_beside_their_files(tmp_path, suffix):
    library(tmp_path, ROTATED)
    link = str(tmp_path / f"library{suffix}")
    twice = cuda.declare_device("twice", "float64(float64)", link=link, abi="c")
    from_the_end = cuda.declare_device("lane_of", "float64(float64[::1])", link=[link])

    def kernel(x, y):
        i = cuda.threadIdx.x
        y[i] = twice(from_the_end(x))

    x, y = np.arange(4.0), np.zeros(4)
    launch(kernel, 1, 4, x, y)
    assert y.tolist() == [6, 4, 2, 0]


def kernel_of(times):
    def kernel(x):
        x[0] = times(x[0])

    return kernel


@apart
def test_equal_names_in_two_files_are_two_functions(tmp_path):
    declared = []
    for name, factor in (("one", "2.0"), ("two", "3.0")):
        (tmp_path / name).mkdir()
        library(tmp_path / name, ROTATED.replace("2.0", factor))
        link = str(tmp_path / name / "library.cu")
        declared.append(cuda.declare_device("twice", "float64(float64)", link=link))
    x = np.ones(1)
    for k, wanted in ((0, 2), (1, 6), (0, 12)):
        launch(kernel_of(declared[k]), 1, 1, x)
        assert x[0] == wanted


HELPED = """
define double @scaled(double %x) {
  %y = call double @help(double %x)
  ret double %y
}
define internal double @help(double %x) noinline {
  %y = fmul double %x, 2.0
  ret double %y
}
"""


@apart
def test_a_kernel_calls_two_files_whose_helpers_have_the_same_name(tmp_path):
    declared = []
    for name, factor in (("one", "2.0"), ("two", "3.0")):
        (tmp_path / name).mkdir()
        text = HELPED.replace("2.0", factor).replace("scaled", f"scaled_{name}")
        library(tmp_path / name, text)
        link = str(tmp_path / name / "library.cu")
        declared.append(cuda.declare_device(f"scaled_{name}", "float64(float64)", link=link))
    one, two = declared

    def kernel(x):
        x[0] = one(x[0])
        x[1] = two(x[1])

    x = np.ones(2)
    launch(kernel, 1, 1, x)
    assert x.tolist() == [2, 3]


@apart
def test_bitcode_that_is_older_than_the_linked_file_is_warned_of(tmp_path):
    library(tmp_path, ROTATED)
    link = tmp_path / "library.cu"
    link.write_text("")
    modified = link.stat().st_mtime
    os.utime(tmp_path / "library.bc", (modified - 60, modified - 60))
    twice = cuda.declare_device("twice", "float64(float64)", link=str(link))
    with pytest.warns(UserWarning, match=r"library\.bc is older than .*library\.cu"):
        launch(kernel_of(twice), 1, 1, np.ones(1))


@apart
def test_a_declaration_that_does_not_fit_the_bitcode_is_refused(tmp_path):
    library(tmp_path, ROTATED)
    link = str(tmp_path / "library.cu")
    twice = cuda.declare_device("twice", "float64(float64, int32, int32)", link=link)
    with pytest.raises(BackendUnavailable, match=r"twice takes 1 arguments in .*, not the 3 of"):
        launch(lambda x: twice(x[0], 1, 2), 1, 1, np.ones(1))


def test_passes_may_be_the_first_that_a_process_asks_of_llvm():
    code = (
        "import llvmlite.binding as llvm\n"
        "from gpushmem.simt.base import llvm_passes\n"
        "llvm_passes.over_module(llvm.parse_assembly(''), ('global_dead_code_eliminate',))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
