"""Run numba-cuda-mlir's own tests on the engine, and count.

Usage: python -m tests.oracle.mlir TESTS [--every N] [--save FILE] [NAME ...]

TESTS is the folder `tests` of numba-cuda-mlir's sources, of the version that is installed: its
wheel has no tests. They need pytest-xdist, pytest-timeout, filecheck and cffi. A file NAME of it
stands for all its tests; without any, all run. Exit code 1 if an applicable test fails.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from tests.oracle.applicability import CUDA_CPP, why_not

ROOT = Path(__file__).parent.parent.parent
TIMEOUT = 120  # seconds for one test
# Makes pytest believe that it runs on Windows, and so ends it when the test fails.
WINDOWS = "test_inspect_llvm.py::test_inspect_llvm_windows_preserves_debug_info"
NOT_USED = "does not use the engine: it tests numba-cuda-mlir's compiler or its Python code alone"
COMPILER = "asks numba-cuda-mlir's compiler for MLIR, PTX or a cubin"
INSIDE = "looks inside numba-cuda-mlir's dispatcher, launcher or driver"
LOWERING = "extends numba-cuda-mlir's compiler with lowerings to MLIR"
GPU = "starts a process of its own, which needs a GPU"
THEIRS = "compares with objects of numba-cuda-mlir's own: its types, its settings"
TORCH = "needs PyTorch's tensors on a GPU"

# Pattern for a test's name or for the error of one that failed -> why it does not apply.
RULES = [
    (r"compiler makes code for GPUs|no attribute '(inspect|_?compile)_\w+'", COMPILER),
    (r"inspect_\w+\(", COMPILER),
    (r"^(ast_transforms|infra|mlir|runtime)/|filecheck|FileCheck|_mlir\._mlir", COMPILER),
    (r"nvcc|linking |links \[|CUSource|declare_device|nvrtc|NVRTC", CUDA_CPP),
    (r"ExternFunction object|test_link", CUDA_CPP),
    (r"process failed with code|subprocess\.(Called|Timeout)|driver library cannot be", GPU),
    (r"DynamicLibNotFoundError|_Linker\.|test_init\.py", INSIDE),
    (r"'Dispatcher' object has no attribute|MLIRDispatcher|test_descriptor_|_cext", INSIDE),
    (r"numba_cuda_mlir\.(lowering|models|extending)|code is MLIR", LOWERING),
    (r"test_dump_nvvm\.|test_inlining\.|_lto_defaults|nvvm_bad_option|ptx_align", COMPILER),
    (r"_uses_constant_memory", COMPILER),
    (r"test_post_inline_planners|test_profile_compile_time|_concurrent_initialization", INSIDE),
    (r"test_(localmem|sm_creation)\.py.*_dtype$|test_cuda_devicerecord|AcceleratedArch", THEIRS),
    (r"test_max_pending_bytes", THEIRS),
    (r"Torch not compiled with CUDA", TORCH),
]

# The same of tests that do apply and fail: what is missing.
LACKING = [
    (r"test_varargs", "kernels with *args"),
    (r"consteval", "loops unrolled by cuda.experimental.consteval"),
    (r"test_argument_handler", "arguments of types that a program has made"),
    (r"test_ptr_ops", "arithmetic of pointers"),
    (r"shared\.array|test_sm_creation", "shared arrays whose size is known when the kernel runs"),
    (r"complex32", "complex numbers of 16 bits"),
    (r"itemsize|_captured_dtype", "attributes of dtypes"),
    (r"'Function' object has no attribute", "settings of the driver's functions"),
]  # fmt: skip
OTHER = "one thing each, which numba-cuda does differently"


def run(tests, names, every, out):
    """Run tests in all cores' processes; the outcomes are lines of JSON in the file `out`."""
    env = {**os.environ, "GPUSHMEM_ORACLE_OUT": str(out), "GPUSHMEM_ORACLE_EVERY": str(every)}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(tests), env.get("PYTHONPATH", "")])
    options = [
        "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "-p",
        "tests.oracle.mlir_plugin", "-W", "ignore", "-q", "--tb=short", "--timeout", str(TIMEOUT),
        "--timeout-method", "thread",  # ends the process of a test that hangs in C
        "-n", str(len(os.sched_getaffinity(0))), "--dist", "load", "--ignore", "benchmarks",
        "--deselect", WINDOWS,
    ]  # fmt: skip
    command = [sys.executable, "-m", "pytest", *options, *(names or ["."])]
    subprocess.run(command, cwd=tests, env=env, check=False)  # 1 if a test fails


def judge(lines):
    """Sort outcomes into passed, failed, skipped and not applicable: {test: (verdict, why)}."""
    verdicts = {}
    for line in lines:
        test, outcome, detail = line["test"], line["outcome"], line["detail"]
        if verdicts.get(test, ("",))[0] in ("failed", "not applicable", "skipped"):
            continue  # its end passes after it has failed
        why = detail
        if outcome == "failed":
            reason = next((w for p, w in RULES if re.search(p, test) or re.search(p, detail)), None)
            reason = reason or why_not(test.replace(".py::", ".").replace("::", "."))
            outcome, why = ("not applicable", reason) if reason else (outcome, detail)
        elif outcome == "passed" and not line["engine"]:
            outcome, why = "not applicable", NOT_USED
        verdicts[test] = outcome, why
    return verdicts


def what_is_missing(test, detail):
    """Why a test fails."""
    return next((why for p, why in LACKING if re.search(p, test) or re.search(p, detail)), OTHER)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tests", type=Path)
    parser.add_argument("--save", type=Path, help="write counts and reasons as JSON")
    parser.add_argument("--every", type=int, default=1, help="run each Nth test only: a sample")
    parser.add_argument("--of", type=Path, help="judge the lines of an earlier run")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = args.of or Path(folder) / "outcomes"
        if not args.of:
            run(args.tests.resolve(), args.names, args.every, out)
        verdicts = judge(map(json.loads, out.read_text().splitlines()))
    counts = dict(sorted(Counter(verdict for verdict, _ in verdicts.values()).items()))
    failed = {test: why for test, (verdict, why) in verdicts.items() if verdict == "failed"}
    for test, why in failed.items():
        print(f"\nFAILED {test}\n{why[-1500:]}")
    print(f"\n{sum(counts.values())} tests: {counts}")
    if args.save:
        reasons = Counter(why for verdict, why in verdicts.values() if verdict == "not applicable")
        lacking: dict[str, list[str]] = {}
        for test, why in sorted(failed.items()):
            lacking.setdefault(what_is_missing(test, why), []).append(test)
        result = {
            "numba-cuda-mlir": version("numba-cuda-mlir"), "every": args.every, "counts": counts,
            "not applicable": dict(reasons.most_common()),
            "failed": dict(sorted(lacking.items(), key=lambda row: -len(row[1]))),
        }  # fmt: skip
        args.save.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
