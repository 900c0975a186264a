"""Names, keywords and enumerations: those of nvshmem4py, which must be installed."""

import ast
import importlib
import inspect
import re

import pytest

from tests.test_project import loaded

make_names = loaded("docs/make_names.py")
pytestmark = pytest.mark.skipif(not make_names.folder(), reason="needs nvshmem4py")
CORE = (
    "init_fini", "memory", "interop/cupy", "interop/torch", "rma", "amo", "collective", "direct",
    "teams",
)  # fmt: skip


def test_the_page_is_current():
    assert make_names.page() == make_names.PAGE.read_text(), "run python docs/make_names.py"


def parameters(function):
    """The names of a function's parameters, in nvshmem4py's sources."""
    given = function.args
    return [each.arg for each in given.posonlyargs + given.args + given.kwonlyargs]


def functions(path):
    tree = ast.parse((make_names.folder() / f"{path}.py").read_text())
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("module", CORE)
def test_hosts_functions_have_the_same_parameters(module):
    ours = importlib.import_module(f"{make_names.OURS}.core")
    theirs = [f for f in functions(f"core/{module}") if f.name in ours.__all__]
    assert theirs
    for function in theirs:
        there = inspect.signature(getattr(ours, function.name)).parameters
        assert list(there) == parameters(function), function.name


@pytest.mark.parametrize("module", ["rma", "amo", "collective", "mem", "direct"])
def test_kernels_functions_have_the_same_parameters(module):
    """Theirs are those of the overloads: the functions' own are other ones, or missing."""
    ours = importlib.import_module(f"{make_names.OURS}.core.device.numba")
    checked = 0
    for function in functions(f"core/device/numba/{module}"):
        for overload in function.decorator_list:
            if isinstance(overload, ast.Call) and overload.func.id == "overload":
                name = overload.args[0].id
                assert ours.parameters_of(name) == parameters(function), name
                checked += 1
    assert checked


@pytest.mark.parametrize(
    "path",
    ["Cmp_type", "Signal_op", "Smem_amount", "Init_status", "Thread_support", "Pe_index",
     "Qp_handle_index"],
)  # fmt: skip
def test_enumerations_have_the_same_values(path):
    theirs = pytest.importorskip("nvshmem.bindings")
    ours = importlib.import_module(f"{make_names.OURS}.bindings")
    assert members(ours, path) == members(theirs, path)


def members(module, path):
    """Names and values of an enumeration, with its aliases."""
    return {name: member.value for name, member in getattr(module, path).__members__.items()}


def test_teams_have_the_same_values():
    theirs = members(pytest.importorskip("nvshmem.bindings"), "Team_id")
    ours = members(importlib.import_module(f"{make_names.OURS}.bindings"), "Team_id")
    assert ours.items() <= theirs.items()
    missing = {name for name in theirs.keys() - ours.keys() if not name.endswith("_INDEX")}
    assert missing == set(re.findall(r"TEAM_\w+", make_names.DIFFERS["Teams"])) - ours.keys()


def test_ids_have_the_same_layout():
    theirs = pytest.importorskip("nvshmem.bindings")
    ours = importlib.import_module(f"{make_names.OURS}.bindings")
    for name in ("uniqueid", "TeamConfig"):
        there, here = (getattr(module, name)()._data.dtype for module in (theirs, ours))
        assert here.fields == there.fields
        assert here.itemsize == there.itemsize
