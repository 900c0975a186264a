"""The CUDA simulator: programs of numba.cuda that know nothing of gpushmem, as real processes."""

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from uuid import uuid4

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
    import multiprocessing, sys
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np
    from numba import config, cuda

    @cuda.jit
    def double(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= 2

    def work(device):
        cuda.select_device(device)
        x = cuda.to_device(np.arange(1000))
        double[4, 256](x)
        return cuda.get_current_device().id, int(x.copy_to_host().sum())

    def send(device, pipe):
        pipe.send(work(device))

    if __name__ == "__main__":
        assert cuda.is_available() and cuda.detect() and not config.ENABLE_CUDASIM
        for how in ("fork", "spawn"):
            context = multiprocessing.get_context(how)
            mine, its = context.Pipe()
            child = context.Process(target=send, args=(1, its))
            child.start()
            print(how, mine.recv())
            child.join()
        with ThreadPoolExecutor(2) as pool:
            print("threads", *pool.map(work, range(2)))
        print(work(0), len(cuda.gpus), *sys.argv[1:])
"""


@pytest.fixture
def python(tmp_path):
    """`python(*args, GPUSHMEM_SIM=1, ...)`: the interpreter of a machine with gpushmem_sim.pth."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(ROOT)!r})")
    path = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])

    def run(*args, code=0, stdin="", **variables):
        env = {**os.environ, "PYTHONPATH": path, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"}
        env |= {name: str(value) for name, value in variables.items()}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *map(str, args)],
            cwd=tmp_path, env=env, input=stdin, text=True, capture_output=True, timeout=150,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def program(tmp_path):
    """`program(text)`: a file with this text."""

    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_the_variable_is_heard_by_processes_that_do_not_import_gpushmem(python, program):
    ours = {"GPUSHMEM_SIM": 1, "GPUSHMEM_SIM_DEVICES": 2, "NUMBA_ENABLE_CUDASIM": 1}
    lines = python(program(PROGRAM), "a", "b", **ours).stdout.splitlines()
    assert lines[-4:] == [
        "fork (1, 999000)", "spawn (1, 999000)", "threads (0, 999000) (1, 999000)",
        "(0, 999000) 2 a b",
    ]  # fmt: skip


def test_a_program_may_use_the_patch_itself_too(python):
    code = "from gpushmem.simt.numba_cuda import patch_numba_cuda as p; from numba import cuda"
    assert python("-c", f"{code}; print(cuda.detect())", GPUSHMEM_SIM=1).stdout.endswith("True\n")


def test_the_start_of_a_process_costs_nothing(python):
    seen = "import sys; print(sorted({m.split('.')[0] for m in sys.modules} & set('%s'.split())))"
    heavy = seen % "gpushmem numba numpy llvmlite click"
    assert python("-c", heavy).stdout == "[]\n"
    assert python("-c", heavy, GPUSHMEM_SIM="").stdout == "[]\n"
    assert python("-c", heavy, GPUSHMEM_SIM=1).stdout == "['gpushmem']\n"
    wrong = python("-c", "print('runs')", GPUSHMEM_SIM="maybe")
    assert wrong.stdout == "runs\n"
    assert "environment variable GPUSHMEM_SIM: 'maybe' is neither 1 nor 0" in wrong.stderr


SESSION = """
from numba import cuda
import numpy as np
x = np.zeros(3)
exec('''
@cuda.jit(device=True)
def one_more(a):
    return a + 1
@cuda.jit
def step(x):
    x[cuda.grid(1)] = one_more(x[cuda.grid(1)])
    print(cuda.threadIdx.x)
''')
step[1, 3](cuda.to_device(x))
"""


def test_a_session_whose_last_launch_nobody_waits_for(python):
    """Its kernels have no file, and what they print is not lost."""
    assert python("-", stdin=SESSION, GPUSHMEM_SIM=1).stdout == "0\n1\n2\n"


def test_the_command_runs_a_program_as_python_does(python, program):
    text = "import sys; from numba import cuda\nprint(sys.argv, len(cuda.gpus))\n1 / 0"
    sim = "-m", "gpushmem", "sim"
    done = python(*sim, program(text), "-x", "y", code=1, NUMBA_ENABLE_CUDASIM=1)
    assert done.stdout.endswith("program.py', '-x', 'y'] 1\n")
    first, where, *_, last = done.stderr.splitlines()
    assert first.startswith("Traceback")
    assert where.endswith('program.py", line 3, in <module>')
    assert last == "ZeroDivisionError: division by zero"
    assert python(*sim, "-c", "import sys; sys.exit(len(sys.argv))", "q", code=2).stderr == ""
    assert "choose one of them" in python(*sim, "-m", "x", "-c", "y", code=2).stderr


def test_pytest_runs_in_it(python, program):
    program(
        """
        import numpy as np
        from numba import cuda

        @cuda.jit
        def one_more(x):
            x[cuda.grid(1)] += 1

        def test_one_more():
            x = np.zeros(4)
            one_more[1, 4](x)
            assert (x == 1).all()
        """,
        "test_kernel.py",
    )
    done = python("-m", "gpushmem.simt", "-m", "pytest", "-p", "no:cacheprovider", "test_kernel.py")
    assert "1 passed" in done.stdout
    assert "gpushmem: numba.cuda runs on the CPU, as h100" in done.stdout


def test_a_second_run_compiles_nothing(python, program, tmp_path):
    program("from numba import cuda\n\n@cuda.jit\ndef inner(a):\n    return 2 * a\n", "device.py")
    file = program(
        """
        import sys
        import numpy as np
        from numba import cuda
        import device

        def scale_by(factor):
            @cuda.jit
            def scale(x, y):
                shared = cuda.shared.array(8, np.float64)
                t = cuda.threadIdx.x
                shared[t] = device.inner(x[t])
                cuda.syncthreads()
                y[t] = factor * shared[7 - t]
            return scale

        @cuda.jit(debug=True, opt=False)
        def fail(x):
            if cuda.threadIdx.x == 3:
                raise ValueError("three")

        kernels = [scale_by(3), scale_by(3), scale_by(5)]
        x, y = np.arange(8.0), np.zeros(8)
        for kernel in kernels:
            kernel[1, 8](x, y)
            print(*y.astype(int))
        try:
            fail[1, 8](x)
        except ValueError as error:
            print(str(error)[-36:])
        compiled = [k for d in [*kernels, fail] for k in d.overloads.values() if "made" in vars(k)]
        print(len(compiled), "compiled")
        kernel = next(iter(kernels[0].overloads.values()))
        print(*kernel.signature.args, kernel.shared_mem_per_block, kernel.max_threads_per_block)
        if "show" in sys.argv:
            assert "ret" in kernel.inspect_asm(None) and "define" in kernel.inspect_llvm()
            kernels[0].inspect_types()
        """,
        f"{uuid4().hex}.py",  # which the store does not know
    )

    def run(*args):
        lines = python("-m", "gpushmem.simt", file, *args).stdout
        return [line for line in lines.splitlines() if "numba.cuda runs on" not in line]

    def expected(inner, compiled):
        threes, fives = (
            " ".join(str(factor * inner * k) for k in range(7, -1, -1)) for factor in (3, 5)
        )
        kind = "array(float64, 1d, C)"
        return [
            threes, threes, fives, "tid=[0, 0, 3] ctaid=[0, 0, 0]: three",
            f"{compiled} compiled", f"{kind} {kind} 64 1024",
        ]  # fmt: skip

    assert run() == expected(2, 3)  # of the equal ones, one
    assert run() == expected(2, 0)
    shown = run("show")
    assert shown[:6] == expected(2, 0)
    assert any("shared = " in line for line in shown)  # inspect_types: the source
    (tmp_path / "device.py").write_text((tmp_path / "device.py").read_text().replace("2 *", "4 *"))
    assert run() == expected(4, 3 - 1)  # `fail` does not call it


def test_it_can_be_enabled_after_kernels_are_defined_and_disabled(python, program):
    file = program(
        """
        import numpy as np
        from numba import cuda
        from gpushmem import simt

        @cuda.jit(device=True)
        def twice(a):
            return 2 * a

        @cuda.jit
        def double(x):
            x[cuda.grid(1)] = twice(x[cuda.grid(1)])

        before = cuda.is_available()
        simt.enable("a100")
        assert cuda.get_current_device().compute_capability == (8, 0)
        x = np.ones(4)
        double[1, 4](x)
        assert (x == 2).all()
        simt.disable()
        assert cuda.is_available() == before
        try:
            simt.enable("gtx")
        except ValueError as error:
            print(error)
        """
    )
    assert "'gtx' is not one of t4, a100, h100, b200" in python(file).stdout
    late = "from numba import cuda; import gpushmem.simt; gpushmem.simt.enable()"
    error = python("-c", late, code=1, NUMBA_ENABLE_CUDASIM=1).stderr
    assert "call gpushmem.simt.enable() before numba.cuda is imported" in error


LIMITS = """
    import json
    import numpy as np
    from numba import cuda, float32

    @cuda.jit
    def static(x):
        shared = cuda.shared.array(12289, float32)
        shared[cuda.threadIdx.x] = 1
        x[0] = shared[0]

    @cuda.jit
    def fill(x):
        shared = cuda.shared.array(0, float32)
        shared[cuda.threadIdx.x] = 1
        x[cuda.threadIdx.x] = shared[0]

    @cuda.jit
    def meets(x):
        cuda.cg.this_grid().sync()
        x[0] = 1

    def error(kernel, *shape, x=None):
        try:
            kernel[shape](cuda.device_array(1024) if x is None else x)
            cuda.synchronize()
        except Exception as found:
            return str(found)

    device = cuda.get_current_device()
    odd = cuda.device_array(81, np.uint8)[1:].view(np.float64)
    print(json.dumps([
        device.compute_capability, device.MULTIPROCESSOR_COUNT, device.L2_CACHE_SIZE,
        device.MAX_SHARED_MEMORY_PER_BLOCK, device.MAX_THREADS_PER_MULTIPROCESSOR,
        cuda.current_context().get_memory_info()[1] >> 20, error(fill, 1, 32, 0, 48 << 10),
    ]))
    print(json.dumps([
        error(static, 1, 32), error(fill, 1, 32, 0, (48 << 10) + 1), error(fill, 1, 1025),
        error(fill, 1, 8, x=odd), error(meets, 41, 1024), error(meets, 40, 1024),
    ]))
"""


def test_the_limits_are_those_of_the_chosen_gpu(python, program):
    done = python("-m", "gpushmem", "sim", "--gpu", "t4", program(LIMITS))
    told, errors = map(json.loads, done.stdout.splitlines())
    assert told == [[7, 5], 40, 4 << 20, 48 << 10, 1024, 15110, None]
    wanted = [
        "kernel static (program.py:6) has 49156 bytes of static shared memory; 49152 are possible",
        "launched with 49153 bytes of dynamic shared memory and has 0 of static",
        "block dimension x is 1025; it must be 1 to 1024",
        "is no multiple of 8",
        "of 41 blocks of 1024 threads; at most 40 fit the GPU modelled, Tesla T4",
    ]
    assert all(text in error for text, error in zip(wanted, errors, strict=False)), errors
    assert errors[-1] is None


WRONG = """
    import numpy as np
    from numba import cuda, float32

    @cuda.jit
    def shift(x):
        shared = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        shared[t] = x[t]  # race
        x[t] = shared[(t + 1) % 64]  # race

    @cuda.jit
    def fill(x, n):
        if cuda.grid(1) < n:
            x[cuda.grid(1)] = 1  # bounds

    @cuda.jit
    def empty(x):
        shared = cuda.shared.array(64, float32)
        x[cuda.threadIdx.x] = shared[cuda.threadIdx.x]  # unwritten

    @cuda.jit
    def apart(x):
        if cuda.threadIdx.x < 16:
            cuda.syncthreads()  # barrier
        else:
            cuda.syncthreads()  # barrier
        x[cuda.threadIdx.x] = 0

    def other_program():
        x = cuda.device_array(60, np.float32)  # allocated
        shift[1, 64](cuda.device_array(64, np.float32))
        fill[1, 128](x, 64)
        empty[1, 64](cuda.device_array(64, np.float32))
        apart[1, 32](x)
        fill[1, 32](x, 32)
        cuda.synchronize()

    other_program()
"""


def test_the_checker_finds_what_a_gpu_may_not_show(python, program):
    path = program(WRONG)
    sim = "-m", "gpushmem", "sim", "--check", "--check-format", "json"
    found = json.loads(python(*sim, path, code=66).stdout)
    lines = path.read_text().splitlines()

    def marked(mark):
        return {f"program.py:{k}" for k, line in enumerate(lines, 1) if line.endswith(f"# {mark}")}

    kinds = {
        one["kind"]: {a["line"].partition(" in ")[0] for a in one["accesses"]} for one in found
    }
    assert kinds == {kind: marked(kind) for kind in ("race", "bounds", "unwritten", "barrier")}
    (bounds,) = [one for one in found if one["kind"] == "bounds"]
    (where,) = marked("allocated")
    assert bounds["memory"] == f"just past the end of `x` (240 bytes, allocated at {where})"
    assert bounds["accesses"][0]["by"] == "kernel fill, block 0, thread 60,"
    assert "PE " not in json.dumps(found)


def test_explain_runs_such_programs(run_cli, program):
    told = run_cli(
        "explain", "--no-gpu", program(PROGRAM.split("    def send", maxsplit=1)[0] + "    work(0)")
    )
    assert "double(int64[::1])" in told.stdout
    assert "launched  [4, 256] once" in told.stdout


@pytest.mark.sweep
@pytest.mark.timeout(3600)  # a wheel's build runs all examples with an empty cache
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_a_wheel_brings_the_file_that_hears_the_variable(tmp_path, kind):
    pytest.importorskip("setuptools", "77")
    build = f"import setuptools.build_meta as b; print(b.build_{kind}({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as wheel:
        assert wheel.read("gpushmem_sim.pth") == (ROOT / "gpushmem_sim.pth").read_bytes()


DOUBLE = """
    import numpy as np
    from {package} import cuda

    @cuda.jit
    def double(x):
        i = cuda.grid(1)
        {pause}
        if i < x.size:
            x[i] *= 2

    x = cuda.to_device(np.arange(5))
    double[1, 32](x)
    print(*x.copy_to_host())
"""


def test_programs_of_numba_cuda_mlir(python, program):
    pytest.importorskip("numba_cuda_mlir")
    file = program(DOUBLE.format(package="numba_cuda_mlir", pause=""))
    assert python(file, GPUSHMEM_SIM=1).stdout == "0 2 4 6 8\n"
    assert python("-m", "gpushmem", "sim", file).stdout == "0 2 4 6 8\n"


def test_a_debugger_stops_in_a_thread(python, program):
    file = program(DOUBLE.format(package="numba", pause="if i == 3: breakpoint()"))
    done = python("-m", "gpushmem", "sim", "--interpret", file, stdin="p i, cuda.threadIdx.x\nc\n")
    assert "kernel double, thread (3, 0, 0) of block (0, 0, 0)" in done.stdout
    assert "(Pdb) (3, 3)" in done.stdout
    assert done.stdout.endswith("0 2 4 6 8\n")
    refused = python("-m", "gpushmem", "sim", "--interpret", "--check", file, code=2)
    assert "--check and --interpret: choose one" in refused.stderr
