"""What people see of an error: the line of theirs, what to write, and none of our frames."""

import pickle
import re
import subprocess
import sys
import traceback

import numpy as np
import pytest
from numba.cuda.core.errors import TypingError

import gpushmem as shmem
from gpushmem.errors import ArgumentError, HeapExhausted, ShmemError

pytestmark = pytest.mark.cpu_backend


@shmem.jit
def typo(x):
    shmem.put_blok(x, x, 0)


@shmem.jit
def stores(x, values):
    x[0] = values[0]


@shmem.jit
def refused(x):
    shmem.put(x, x, 9)


def test_a_name_that_there_is_not_is_refused_with_the_line_and_the_nearest(alone):
    said = r"gpushmem has no put_blok: did you mean put_block(.|\n)*errors_shown.py.*, line \d+:"
    with pytest.raises(TypingError, match=said) as error:
        typo[1, 1](shmem.zeros(1))
    assert "shmem.put_blok(x, x, 0)" in str(error.value)
    assert len(str(error.value)) < 300


@shmem.jit
def unknown(x):
    x[0] = 1
    x[1] = nobody(x)  # noqa: F821


def test_a_name_that_is_not_defined_has_its_line(alone):
    with pytest.raises(TypingError, match=r"^NameError: name 'nobody' is not defined\n\n") as error:
        unknown[1, 1](shmem.zeros(2))
    line = unknown.py_func.__code__.co_firstlineno + 3
    assert f'errors_shown.py", line {line}:\n    x[1] = nobody(x)' in str(error.value)


@pytest.mark.parametrize("what", [[1, 2], {1: 2}, "text", object()], ids=lambda x: type(x).__name__)
def test_what_is_no_kernel_argument_is_refused_by_name(alone, what):
    said = f"kernel stores: argument values is of type {type(what).__name__}, which kernels cannot"
    hint = "numpy.array" if isinstance(what, list) else "they take arrays, numbers"
    with pytest.raises(ArgumentError, match=rf"{said} take: .*{hint}"):
        stores[1, 1](shmem.zeros(1), what)


def test_a_full_heap_says_which_lines_hold_it(alone):
    kept = [shmem.empty(1 << 20, "uint8") for _ in range(4)]
    more = shmem.empty(3 << 20, "uint8")
    few = [
        shmem.empty(256, "uint8"), shmem.empty(256, "uint8"),
        shmem.empty(512, "uint8"),
        shmem.empty(1024, "uint8"),
        shmem.empty(2048, "uint8"),
        shmem.empty(4096, "uint8"),
    ]  # fmt: skip
    with pytest.raises(HeapExhausted) as error:
        shmem.zeros(1 << 22)
    said = str(error.value)
    assert re.match(r"zeros: symmetric heap exhausted: 33554432 bytes", said)
    held = re.findall(r"\n +(\S+ ?\S*) in (\d+) symmetric arrays?, allocated at (\S+)", said)
    assert [where.partition(":")[0] for _, _, where in held] == ["test_errors_shown.py"] * 5
    assert [int(count) for _, count, _ in held] == [4, 1, 1, 1, 1]
    assert said.endswith("\n  and 2 more lines")
    for array in (*kept, more, *few):
        shmem.free(array)


def test_errors_come_without_our_frames(alone):
    x = shmem.zeros(4, "int32")

    def fail_in_a_kernel():
        refused[1, 1](x)
        shmem.synchronize()

    for call in (
        lambda: typo[1, 1](x),
        lambda: stores[1, 1](x, [1]),
        fail_in_a_kernel,
        lambda: shmem.put(x, x[2:], 9),
        lambda: shmem.wait_until(x[4:], shmem.CMP_EQ, 1),
        lambda: shmem.empty(1 << 40),
        lambda: refused[1, 1].bind(np.zeros(1)),
    ):
        try:
            call()
        except (ShmemError, TypingError):
            frames = traceback.extract_tb(sys.exc_info()[2])
            ours = [frame for frame in frames if "/gpushmem/" in frame.filename]
            assert len(ours) <= 2, traceback.format_exc()
        else:
            pytest.fail("no error")


@shmem.jit
def norm_of(x):
    x[0] = np.linalg.norm(x)


@shmem.jit
def signals_an_element(x, signal):
    shmem.put_signal(x, x, signal[1], 1, shmem.SIGNAL_SET, 0)


def test_a_function_that_kernels_do_not_have_is_named_with_its_line(alone):
    said = r"^kernels cannot call norm\(array\(float64, 1d, C\)\): (.|\n)*x\[0\] = np.linalg.norm"
    with pytest.raises(shmem.KernelTypingError, match=said) as error:
        norm_of[1, 1](shmem.zeros(2))
    assert len(str(error.value).splitlines()) < 10
    assert "candidate implementations" in error.value.whole
    again = pickle.loads(pickle.dumps(error.value))
    assert (type(again), str(again)) == (shmem.KernelTypingError, str(error.value))
    assert isinstance(error.value, TypingError)
    assert isinstance(error.value, TypeError)


@shmem.jit
def raises_a_value(x, i):
    if i > 2:
        raise ValueError(i)
    x[0] = i


def test_an_exception_of_a_value_is_refused_with_its_line(alone):
    said = r"^ValueError\(...\) at test_errors_shown.py:\d+: .* arguments .* must be constants"
    with pytest.raises(shmem.KernelTypingError, match=said):
        raises_a_value[1, 1](shmem.zeros(1), 1)


def test_an_element_in_the_place_of_an_array_says_what_to_give(alone):
    said = r"signal must be an array of uint64, not uint64; of an element, a\[i\], give .* a\[i:\]"
    with pytest.raises(shmem.KernelTypingError, match=said):
        signals_an_element[1, 1](shmem.zeros(2), shmem.zeros(2, "uint64"))


def test_python_shows_none_of_our_frames(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import gpushmem\n\ngpushmem.init(heap_size='1M')\ngpushmem.zeros(-1)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stderr.count("  File ") == 1
    assert f'File "{script}", line 4' in done.stderr
    assert "ArgumentError: zeros: " in done.stderr
