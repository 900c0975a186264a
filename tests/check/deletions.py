"""Every statement of kernels and examples that orders something, and programs without it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RUNS = Path(__file__).with_name("ready_kernels.py")
# What is deleted: calls of these, as statements; and the counting of epochs.
ORDERS = re.compile(
    r"(signal_|wait_|barrier|sync|quiet|fence|flush|threadfence|tell(_others)?$|complete$|end$|end_at$)"
)
SENDS = re.compile(r"put_signal(.*)")  # what is sent without its signal
BESIDE = {"_both", "_send", "emptied", "came", "took"}
PARTS = {*BESIDE, "came_from_all", "_share_out", "_sum", "_take", "sum_part"} - {"came"}
# Functions of `kernels/` that each run begins with; or all of a file.
ROOTS = {
    "told": {"tell", "wait_for"},
    "tickets": {"ticket_lock", "ticket_unlock"},
    "mcs": {"mcs_lock", "mcs_unlock"},
    "queue": {"push", "pop"},
    "tasks": {"push_task", "next_task"},
    "arena": {"allocate", "release"},
    "one_shot": {"one_shot", "all_reduce"},
    "two_shot": {"two_shot", "all_reduce"},
    "far": {"one_shot", "all_reduce"},
    "wire": {"one_shot", "all_reduce"},
    "wire_two_shot": {"two_shot", "all_reduce"},
    "ring": {"ring", "all_reduce"},
    "multicast": {"multicast", "all_reduce"},
    "in_place": {"in_place"},
    "ll": {"with_flags", "all_reduce"},
    "ll128": {"ll128_two_shot", "all_reduce"},
    "exchange": {"exchange"},
    "reduce_scatter": {"reduce_scatter"},
    "scan": {"exclusive_scan"},
    "broadcast": {"broadcast"},
    "rows": {"exchange_rows"},
    "rows_put": {"put_rows"},
    "rows_two_level": {"exchange_rows", "exchange", "regroup"},
    "sort": {"count", "place", "sample", "split", "exchange_rows"},
    "ring_attention": {"ring_attention"},
    "ring_attention_backward": {"ring_attention_backward"},
    "attention_library": {"attention_library.*"},
    "attention_library_backward": {"attention_library.*"},
    "ulysses": {"heads_of_all", "tokens_of_mine"},
    "ulysses_far": {"heads_of_all", "tokens_of_mine"},
    "zero": {"in_one_pass"},
    "zero_clipped": {"sum_buckets", "second_pass", "gather"},
    "zero_later": {"in_one_pass", "gather_bucket", "gather"},
    "muon": {"sum_buckets", "momentum", "polynomial", "update", "second_pass", "gather"},
    "streams": {"one_shot", "all_reduce", "launch"},
    "norm": {"one_shot", "all_reduce_norm"},
    "norm_two_shot": {"two_shot", "all_reduce_norm"},
    "all_gather_gemm": {"all_gather_gemm"},
    "gemm_reduce_scatter": {"gemm_reduce_scatter"},
    "gemm_sent": {"gemm_reduce_scatter"},
    "gemm_all_reduce": {"gemm_all_reduce"},
    "gemm_at_once": {"gemm_at_once"},
    "gather_beside": {*BESIDE, "copy_all"},
    "scatter_beside": {*BESIDE, "_scatter", "sum_chunk"},
    "reduce_beside": {*PARTS, "copy_all"},
    "reduce_in_place": PARTS,
    "jacobi_one_block": {"iterate", "exchange", "largest_change"},
    "jacobi3": {"iterate", "exchange", "largest_change"},
    "jacobi2": {"iterate", "exchange", "largest_change"},
    "halo": {"exchange_halos", "add_halos"},
    "moe": {"fused", "choose"},
    "moe_library": {"moe_library.*", "dispatch_low_latency", "combine"},
    "low_latency": {"dispatch_low_latency", "combine"},
    "throughput": {"dispatch_throughput", "combine", "over_segments"},
    "low_latency_far": {"dispatch_low_latency", "combine"},
    "throughput_far": {"dispatch_throughput", "combine"},
    "int8": {"dispatch_low_latency", "combine", "narrow", "widen"},
    "pages": {"send_layer", "start_request", "give_table", "receive_layer", "put_pages"},
    "pages_8_bits": {"send_layer", "give_table", "widen_layer", "put_pages_as_8_bits"},
    "pages_8_bits_far": {"send_layer", "put_pages_as_8_bits"},
    "pages_given_up": {"send_layer", "give_up", "cancel"},
    "decode": {"flash_decode", "attend_by_tiles"},
    "decode_lanes": {"flash_decode", "attend_to_all"},
    "pipeline": {"run_table", "send_one", "receive_one"},
    "pipeline_far": {"run_table", "send_one", "receive_one"},
    "fft": {"fft", "load_rows"},
    "fft_tiles": {"in_tiles"},
    "spmv": {"multiply"},
    "spmv_far": {"multiply"},
    "bfs": {"search", "begin_at"},
    "bags": {"embed"},
    "bags_lanes": {"embed_by_lanes"},
    "bags_far": {"embed"},
}


# Runs of two PEs in every order: what is deleted is needed in some alone.
EVERY_ORDER = {"mcs"}


class Deletion(NamedTuple):
    """A statement to be left out."""

    path: Path
    function: str
    first: int  # line, from 1
    last: int
    text: str  # the statement
    instead: str  # what stands there then

    @property
    def name(self) -> str:
        """For people: file, function and statement."""
        return f"{self.path.relative_to(ROOT)}:{self.function}:{self.text}"

    def source(self) -> str:
        """The file without the statement."""
        lines = self.path.read_text().splitlines(keepends=True)
        start = lines[self.first - 1]
        indent = start[: len(start) - len(start.lstrip())]
        new = [f"{indent}{self.instead}\n"] + ["\n"] * (self.last - self.first)
        return "".join(lines[: self.first - 1] + new + lines[self.last :])

    def runs(self) -> list[str]:
        """The runs that reach it; of an example, the example."""
        if self.path.parent.name == "examples":
            return [""]
        here = self.path.stem, self.function
        return [run for run, roots in ROOTS.items() if here in reached(roots)]


def deletions(path: Path) -> list[Deletion]:
    """All of a file."""
    found = []
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for node in ast.walk(tree):
        instead = _instead(node)
        if instead is None:
            continue
        around = [f for f in functions if f.lineno <= node.lineno <= f.end_lineno]
        name = max(around, key=lambda f: f.lineno).name if around else ""
        text = " ".join(ast.unparse(node).split())
        found.append(Deletion(path, name, node.lineno, node.end_lineno, text, instead))
    return sorted(found, key=lambda deletion: deletion.first)


def _instead(node: ast.AST) -> str | None:
    """What stands for a statement that is deleted; None: it orders nothing."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if ORDERS.match(name):
            return "pass"
        sends = SENDS.match(name)
        if sends:
            dst, src, *_, pe = map(ast.unparse, call.args)
            return f"shmem.put{sends[1]}({dst}, {src}, {pe})"
    target: ast.AST | None = None
    if isinstance(node, ast.AugAssign):
        target = node.target
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0]
    counted = ast.unparse(target) if target is not None else ""
    return "pass" if counted == "epoch" or counted.startswith("epochs[") else None


def reached(roots: set[str]) -> set[tuple[str, str]]:
    """The functions of `kernels/` that some of them call, each with its file."""
    calls = functions_and_calls()
    todo, seen = {f for f in calls if {f[1], f"{f[0]}.*"} & roots}, set()
    while todo:
        function = todo.pop()
        seen.add(function)
        todo |= (calls[function] & calls.keys()) - seen
    return seen


@cache
def functions_and_calls() -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Of each function of `kernels/` what it names: what is in its file, or imported there."""
    calls = {}
    for path in (ROOT / "kernels").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imported = {
            name.asname or name.name: ((node.module or "").rpartition(".")[2], name.name)
            for node in nodes if isinstance(node, ast.ImportFrom)
            for name in node.names
        }  # fmt: skip
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - {node.name}
                calls[path.stem, node.name] = {imported.get(n, (path.stem, n)) for n in names}
    return calls


class Tree:
    """A copy of the package, in which one file may differ."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "kernels")
        shutil.copytree(ROOT / "gpushmem", folder / "gpushmem", ignore=ignored)
        shutil.copytree(ROOT / "kernels", folder / "gpushmem" / "kernels", ignore=ignored)

    def ready(self, run: str) -> tuple[int, str]:
        """Make a run of `ready_kernels`."""
        if run in EVERY_ORDER:
            return self.run("--check-runs", "all", RUNS, run, pes=2)
        return self.run(RUNS, run)

    def run(self, *args: str | Path, pes: int = 3) -> tuple[int, str]:
        """Run a program with the copy, under the checker: exit code, and what was said."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "GPUSHMEM_TIMEOUT": "30"}
        done = subprocess.run(
            [
                sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "--check",
                "-n", str(pes), *map(str, args),
            ],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=150,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stderr

    def without(self, deletion: Deletion, run: str) -> tuple[int, str]:
        """Run a program without a statement."""
        if not run:
            place = self.folder / deletion.path.name
            place.write_text(deletion.source())
            return self.run(place, pes=4)
        place = self.folder / "gpushmem" / "kernels" / deletion.path.name
        place.write_text(deletion.source())
        try:
            return self.ready(run)
        finally:
            shutil.copy(deletion.path, place)
