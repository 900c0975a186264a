"""The project about itself: docstrings, light imports, which room may know which."""

import ast
import hashlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpushmem
import gpushmem.ops
from gpushmem.backends.registry import BACKENDS
from gpushmem.settings import SETTINGS
from tests import tiers
from tests.docs.test_errors import OF_OTHERS, PAGES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gpushmem"


API, HOST_PAGE = ((ROOT / "docs" / page).read_text() for page in ("api.md", "host.md"))


def loaded(path):
    """A module of the repository that is in no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", gpushmem.__all__)
def test_public_names_have_docstrings_or_are_constants(name):
    value = getattr(gpushmem, name)
    assert isinstance(value, int) or value.__doc__


def test_public_names_are_all_there_is():
    assert set(gpushmem.__all__) <= set(dir(gpushmem))
    for public in ("jit", "init", "put_nbi_block", "CMP_EQ", "HeapExhausted", "SymmetricArray"):
        assert public in gpushmem.__all__
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        gpushmem.no_such_name  # noqa: B018


# Code, and the modules that it must not load.
LIGHT = {
    "import gpushmem": ("numba", "numpy", "llvmlite", "click", "IPython"),
    "from gpushmem.backends.nvshmem.compile import aot, compiler": ("gpushmem.simt",),
    "import gpushmem.diagnosis.jobs, gpushmem.start.launch.local": ("numba", "gpushmem.simt"),
    "import gpushmem.start.bootstrap": ("numba", "gpushmem.start.launch"),
    "import gpushmem.simt.observe, gpushmem.waiting_threads": ("numba", "numpy", "llvmlite"),
    "import gpushmem.progress": ("rich", "numba", "numpy"),
    "import gpushmem.torch": ("numba", "numpy", "torch"),
    "import gpushmem.simulator": ("numba", "numpy", "click", "gpushmem.ops"),
    "import gpushmem.pytest_plugin": ("numba", "numpy", "llvmlite", "click"),
    "from gpushmem.backends.registry import *\nfor name in BACKENDS: about(name)": (
        "nvshmem", "numba", "numpy", "cuda",
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", LIGHT)
def test_importing_loads_no_more_than_it_must(code):
    code = f"{code}\nimport sys; print([m for m in sys.modules if m.startswith({LIGHT[code]})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_other_machines_are_told_what_is_supported():
    code = "import sys; sys.platform = 'darwin'; import gpushmem"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: gpushmem runs on Linux x86-64, with or without a GPU, and")
    code = "import os; os.uname = lambda: os.uname_result(['', '', '', '', 'aarch64'])\n"
    code += "import gpushmem"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "UserWarning: gpushmem runs on Linux x86-64: its cpu backend does not" in done.stderr
    assert "aarch64" in done.stderr


# A room, and what it may import of the package.
ROOMS = {
    "errors.py": [],
    "arguments.py": ["errors"],
    "ops": ["errors"],
    "size.py": ["errors"],
    "settings.py": ["size", "errors"],
    "source_lines.py": [],
    "import_hooks.py": [],
    "gc_control.py": [],
    "cache_files.py": ["settings"],
    "progress.py": ["settings"],
    "code_store.py": ["cache_files"],
    "background.py": ["cache_files"],
    "artifacts": ["code_store", "source_lines", "arguments", "settings", "errors"],
    "waiting_threads.py": [],
    "native": ["artifacts", "code_store", "gc_control", "settings"],
    "simt/base": ["native", "artifacts", "code_store", "settings", "errors"],
    "simt/compiler": [
        "simt/base", "native", "artifacts", "code_store", "source_lines", "gc_control",
    ],
    "simt/intrinsics": ["simt/compiler", "simt/base", "native", "artifacts"],
    "simt/bitcode": [
        "simt/intrinsics", "simt/compiler", "simt/base", "native", "artifacts", "code_store",
        "errors",
    ],
    "simt/blocks": ["simt/compiler", "simt/base", "native", "artifacts"],
    "simt/grid": [
        "simt/blocks", "simt/bitcode", "simt/intrinsics", "simt/compiler", "simt/base", "native",
        "artifacts", "code_store", "cache_files", "background", "errors",
    ],
    "simt/run": [
        "simt/grid", "simt/compiler", "simt/base", "native", "waiting_threads", "artifacts",
        "code_store",
        "progress", "settings", "errors",
    ],
    "simt/interpret": ["simt/run", "simt/compiler", "simt/base", "artifacts", "errors"],
    "simt/numba_cuda": [
        "simt/interpret", "simt/run", "simt/grid", "simt/intrinsics", "simt/compiler", "simt/base",
        "artifacts", "settings", "import_hooks", "errors",
    ],
    # The engine's public modules: all that other rooms may import of it.
    "simt": [
        "simt/numba_cuda", "simt/run", "simt/grid", "simt/bitcode", "simt/intrinsics",
        "simt/compiler", "simt/base",
    ],
    "simulator.py": ["simt", "backends", "settings", "import_hooks", "errors"],
    "job": ["background", "settings", "errors"],
    "start/bootstrap": ["job", "settings", "errors"],
    "check": [
        "simt", "native", "artifacts", "code_store", "job", "ops", "settings", "source_lines",
        "progress", "errors",
    ],
    "trace/ring.py": ["ops", "size", "errors"],
    "trace/operation_events.py": ["trace/ring", "ops"],
    "trace/counters.py": ["trace/ring", "ops", "size", "errors"],
    "trace/event_facts.py": ["trace/ring", "trace/counters", "source_lines"],
    "trace": [
        "trace/ring", "trace/operation_events", "trace/counters", "simt", "native", "ops",
        "settings",
        "errors",
    ],
    "diagnosis": [
        "simt", "waiting_threads", "native", "artifacts", "job", "ops", "settings", "source_lines",
        "errors",
    ],
    "backends/cpu/sync": [
        "backends", "diagnosis", "simt", "waiting_threads", "native", "artifacts", "job", "ops",
        "size",
        "errors",
    ],
    "backends/cpu/operations": [
        "backends", "backends/cpu/sync", "check", "trace", "trace/ring", "diagnosis", "simt",
        "waiting_threads", "native", "artifacts", "job", "ops", "size", "errors",
    ],
    "backends": [
        "backends/cpu/operations", "backends/cpu/sync", "check", "trace", "trace/ring",
        "trace/event_facts", "trace/counters", "diagnosis", "simt", "waiting_threads", "native",
        "artifacts", "job", "source_lines", "ops", "code_store", "settings", "size", "arguments",
        "errors",
    ],
    "backends/cpu/dispatched.py": ["backends", "backends/cpu/sync", "native"],
    "backends/cpu/xla_calls.py": [
        "backends", "backends/cpu/dispatched", "backends/cpu/sync", "native", "artifacts",
    ],
    "backends/nvshmem/versions.py": ["artifacts", "settings", "errors"],
    "backends/nvshmem/gpu": ["artifacts", "arguments", "errors"],
    "backends/nvshmem/trace": [
        "backends", "backends/nvshmem/gpu", "trace/ring", "trace/operation_events",
        "trace/event_facts",
        "ops", "settings", "source_lines", "errors",
    ],
    "backends/nvshmem/operations": [
        "backends", "backends/nvshmem/trace", "backends/nvshmem/versions", "ops", "code_store",
        "errors",
    ],
    "backends/nvshmem/compile": [
        "backends", "backends/nvshmem/operations", "backends/nvshmem/trace",
        "backends/nvshmem/versions", "artifacts", "ops", "code_store", "settings", "errors",
    ],
    "backends/nvshmem": [
        "backends", "backends/nvshmem/compile", "backends/nvshmem/operations",
        "backends/nvshmem/trace", "backends/nvshmem/gpu", "backends/nvshmem/versions", "artifacts",
        "job", "ops", "code_store", "settings", "size", "arguments", "errors",
    ],
    "backends/nvshmem_cpu": [
        "backends", "backends/cpu/operations", "backends/cpu/sync", "backends/nvshmem/compile",
        "backends/nvshmem/operations", "backends/nvshmem/versions", "diagnosis", "simt",
        "waiting_threads",
        "native", "artifacts", "job", "ops", "settings", "errors",
    ],
    "start/launch": [
        "gpushmem", "trace/ring", "diagnosis", "job", "ops", "backends", "backends/nvshmem",
        "background", "gc_control", "settings", "size", "arguments", "errors",
    ],
    "memory": ["backends", "artifacts", "ops", "size", "arguments", "errors"],
    "runtime.py": [
        "memory", "backends", "start/bootstrap", "trace/counters", "job", "ops", "background",
        "settings", "size", "source_lines", "arguments", "errors",
    ],
    "communicators.py": ["runtime", "start/bootstrap", "ops", "arguments", "errors"],
    "torch": [
        "kernels", "communicators", "runtime", "memory", "backends/cpu/dispatched",
        "backends/cpu/sync", "simt", "waiting_threads", "native", "artifacts", "job", "ops",
        "settings", "source_lines", "import_hooks", "arguments", "errors",
    ],
    "integrations": [
        "gpushmem", "torch", "kernels", "settings", "errors", "communicators", "runtime", "memory",
        "backends/cpu/xla_calls", "native", "artifacts", "job", "ops", "arguments",
    ],
    "kernel.py": ["runtime", "memory", "backends", "arguments", "errors"],
    "compat": [
        "runtime", "memory", "simulator", "torch", "backends", "backends/cpu/operations", "simt",
        "waiting_threads", "native", "artifacts", "job", "ops", "settings", "source_lines",
        "import_hooks",
        "errors", "__version__",
    ],
    "doctor": [
        "gpushmem", "backends", "backends/nvshmem", "backends/nvshmem/versions", "settings", "size",
        "errors",
    ],
    "explain": [
        "kernel", "runtime", "simulator", "backends/nvshmem/compile", "simt", "waiting_threads",
        "native",
        "artifacts", "job", "progress",
    ],
    "precompile.py": [
        "gpushmem", "backends", "backends/cpu/sync", "simt", "waiting_threads", "native",
        "artifacts",
        "background", "code_store", "cache_files", "settings",
    ],
    "checks.py": ["memory", "ops", "arguments", "errors"],
    "notebook.py": [
        "cli", "start/launch", "check", "trace", "backends", "job", "settings", "errors",
    ],
    "pytest_plugin.py": ["start/launch", "check", "backends", "settings", "errors"],
    "kernels": ["gpushmem", "checks"],  # public names only: what users' plans can do
    "cli": [
        "compat", "start/launch", "check", "trace", "trace/ring", "trace/counters", "diagnosis",
        "doctor", "precompile", "explain", "kernel", "simulator", "backends", "backends/nvshmem",
        "backends/nvshmem/compile", "backends/nvshmem/versions", "job", "code_store", "progress",
        "settings", "size", "errors", "__version__",
    ],
}  # fmt: skip


def room_of(module):
    """The innermost room of a module of this package, or what else it is."""
    path = module.removeprefix("gpushmem.").replace(".", "/")
    parts = path.split("/")
    inner = ("/".join(parts[:k]) for k in range(len(parts), 0, -1))
    return next((room for room in inner if {room, f"{room}.py"} & ROOMS.keys()), parts[0])


def imports_of(source, package):
    """The rooms that a module of `package` imports from, for its types alone too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (room_of(name) for name in names if name.split(".")[0] == "gpushmem")


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import numba, gpushmem.runtime", {"runtime"}),
        ("import gpushmem as shmem", {"gpushmem"}),
        ("from gpushmem import runtime, errors", {"runtime", "errors"}),
        ("from gpushmem.backends.cpu import backend", {"backends"}),
        ("from gpushmem.backends.nvshmem import backend", {"backends/nvshmem"}),
        ("from ... import runtime", {"runtime"}),
        ("from ...backends import cpu", {"backends"}),
        ("from .target import Simt", {"simt/compiler"}),
        ("def f():\n    import gpushmem.kernel", {"kernel"}),
        ("if TYPE_CHECKING:\n    from gpushmem import runtime", {"runtime"}),
        ("import numpy\nfrom gpushmem_tools import runtime", set()),
    ],
)
def test_no_import_escapes_the_rule(source, rooms):
    assert set(imports_of(source, "gpushmem.simt.compiler")) == rooms


LOOSE = {  # files that are in no room
    PACKAGE / path
    for path in (
        "__init__.py", "__main__.py", "simt/__init__.py", "simt/__main__.py", "start/__init__.py",
    )
}  # fmt: skip


def files_of(room):
    """The files of a room that are in no room inside it."""
    if room == "kernels":
        return sorted((ROOT / room).glob("*.py"))
    if room.endswith(".py"):
        return [PACKAGE / room]
    inner = [PACKAGE / other for other in ROOMS if other.startswith(f"{room}/")]
    files = sorted({*(PACKAGE / room).rglob("*.py")} - LOOSE)
    return [file for file in files if not any(file.is_relative_to(other) for other in inner)]


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_know_only_what_is_below_them(room):
    assert files_of(room)
    for path in files_of(room):
        package = ".".join(path.relative_to(ROOT).parent.parts)
        rooms = set(imports_of(path.read_text(), package))
        assert rooms <= {room, *ROOMS[room]}, path.relative_to(ROOT)


def names_in_all(path):
    """What a module lists in `__all__`."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def names_from_the_engine(path):
    """Module and name of what a file outside of the engine imports from it, in a string, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(ROOT).parent.parts)
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found = [(module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.Constant) and re.match(r"gpushmem\.simt\.\w+\.", str(node.value)):
            found = [(node.value, None)]
        else:
            continue
        yield from ((module, name) for module, name in found if "gpushmem.simt" in (
            module, f"{module}.{name}", ".".join(module.split(".")[:2])
        ))  # fmt: skip


def test_of_the_engine_only_its_interface_is_imported():
    """The modules of `docs/engine.md`, which lists their names; no name is there for nobody."""
    engine = PACKAGE / "simt"
    modules = {path.stem for path in engine.glob("[!_]*.py")}
    public = {
        (f"gpushmem.simt.{stem}", name)
        for stem in modules
        for name in names_in_all(engine / f"{stem}.py")
    }
    files = {*PACKAGE.rglob("*.py"), *(ROOT / "kernels").glob("*.py")} - {*engine.rglob("*.py")}
    used = {each for path in files for each in names_from_the_engine(path)}
    assert used == public
    assert len(modules) <= 20
    page = (ROOT / "docs/engine.md").read_text()
    listed = re.findall(r"^\| `simt\.(\w+)` \|.*\| (.*) \|$", page, re.MULTILINE)
    assert {
        (f"gpushmem.simt.{stem}", name) for stem, names in listed
        for name in re.findall(r"`(\w+)`", names)
    } == public  # fmt: skip


def test_no_backend_is_asked_for_by_name():
    """What differs, backends say themselves (`About`); but the doctor's checks are of one each."""
    names = "|".join(BACKENDS)
    asks = re.compile(
        rf'(?<!device\.type) [=!]= "({names})"|"({names})" [=!]=|in [({{\[]"({names})"'
    )
    files = {*PACKAGE.rglob("*.py"), *(ROOT / "kernels").glob("*.py")}
    files -= {*(PACKAGE / "doctor").glob("*.py"), *(PACKAGE / "backends").rglob("*.py")}
    assert [path for path in files if asks.search(path.read_text())] == []


def test_every_file_belongs_to_a_room():
    at_home = {path for room in ROOMS for path in files_of(room)}
    assert set(PACKAGE.rglob("*.py")) - at_home == LOOSE


def test_every_room_is_on_the_page_of_the_architecture():
    page = (ROOT / "docs/architecture.md").read_text()
    folders = {room for room in ROOMS if not room.endswith(".py")}
    assert [room for room in sorted(folders) if f"| `{room}` |" not in page] == []
    assert len(page.splitlines()) <= 200


def test_every_file_begins_with_what_it_is():
    for path in (*PACKAGE.rglob("*.py"), *(ROOT / "kernels").glob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc, path
        assert doc.splitlines()[0].endswith("."), path


def test_the_heap_knows_no_numba():
    for path in (PACKAGE / "memory").glob("*.py"):
        assert "numba" not in path.read_text(), path.name


def test_the_packages_listed_are_those_there_are():
    packages = (ROOT / "pyproject.toml").read_text().split("\npackages = [")[1].split("]")[0]
    listed = set(re.findall(r'"(.*)"', packages))
    found = {
        "gpushmem" + ".".join(["", *path.parent.relative_to(PACKAGE).parts])
        for path in PACKAGE.rglob("__init__.py")
    }
    assert listed == found | {"gpushmem.help", "gpushmem.kernels"}


def test_what_is_written_from_other_tables_is_current():
    pages = loaded("docs/make_tables.py").pages()
    there = {f"measurements/{path.name}" for path in (ROOT / "docs/measurements").glob("*.md")}
    assert there == {name for name in pages if name.startswith("measurements/")}
    for name, made in pages.items():
        assert (ROOT / "docs" / name).read_text() == made, "run python docs/make_tables.py"


def test_all_measurements_are_on_a_page():
    pages = loaded("docs/make_tables.py").measurements.PAGES
    shown = [result for _, sections in pages.values() for _, result, _ in sections]
    found = {path.stem for path in (ROOT / "bench/results").glob("*.json")}
    assert sorted(shown) == sorted(found - {"predictions"})  # are no measurements: docs/kernels.md


NUMBER = re.compile(r"\d[\d.,]*(?:x| (?:s|ms|us|ns|MB)\b)")
MEASURED = re.compile(r"\]\(measurements/(\w+)\.md#([\w-]+)\)")


@pytest.mark.parametrize("page", ["performance", "costs"])
def test_the_numbers_told_are_the_ones_measured(page):
    """Each number of a line stands in one of the sections that the line links."""
    checked = 0
    for line in (ROOT / f"docs/{page}.md").read_text().splitlines():
        sections = "".join(_section(*link) for link in MEASURED.findall(line))
        for number in NUMBER.findall(line) if sections else ():
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\w)", sections), line
            checked += 1
    assert checked > 4


def _section(name, anchor):
    """The text below the heading that an anchor names."""
    parts = re.split(
        r"^##+ (.*)$", (ROOT / f"docs/measurements/{name}.md").read_text(), flags=re.MULTILINE
    )
    anchors = (re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in parts[1::2])
    return dict(zip(anchors, parts[2::2], strict=True))[anchor]


@pytest.mark.parametrize("tool", ["ruff", "mypy", "codespell"])
def test_hooks_run_the_version_that_is_pinned(tool):
    pinned = re.search(rf'"{tool}==(.*?)"', (ROOT / "pyproject.toml").read_text())[1]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.search(rf"{tool}\S*\n +rev: v(.*)", hooks)[1] == pinned


def test_docs_name_files_that_exist():
    pages = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    for page in (*pages, *(ROOT / "examples").glob("*.md")):
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([\w./-]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_example_of_an_operation_quotes_the_code():
    page = (ROOT / "CONTRIBUTING.md").read_text().split("### An example")[1].split("\n## ")[0]
    quoted = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)).split("\n")
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert len(quoted) > 6
    assert [line for line in quoted if line.strip() not in code] == []


def test_what_is_written_from_the_table_is_current():
    make_api = loaded("docs/make_api.py")
    assert make_api.page() == API, "run python docs/make_api.py"
    assert make_api.host_page() == HOST_PAGE, "run python docs/make_api.py"
    kernels = (ROOT / "docs/api-kernels.md").read_text()
    assert make_api.kernels_page() == kernels, "run python docs/make_api.py"
    if importlib.util.find_spec("torch") is not None:
        torch = (ROOT / "docs/api-torch.md").read_text()
        assert make_api.torch_page() == torch, "run python docs/make_api.py"
    assert (PACKAGE / "__init__.pyi").read_text() == make_api.stub(), "run python docs/make_api.py"


def on_a_page(name):
    op = gpushmem.ops.OPS.get(name)
    if op is None:
        return re.search(rf"^### {name}$|^\| `{name}` \||`{name}`[ ,]", HOST_PAGE, re.MULTILINE)
    row = re.search(rf"^\| \[`{op.base}(_warp|_block)?`\].*", API, re.MULTILINE)[0]
    return f"[`{name}`]" in row or f"`{op.form}`" in row


def test_every_public_name_is_on_a_page():
    assert [name for name in gpushmem.__all__ if not on_a_page(name)] == []


def test_the_stub_has_all_public_names():
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    named = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("gpushmem"):
            named |= {alias.asname for alias in node.names}
    assert named == set(gpushmem.__all__)
    put = next(node for node in tree.body if getattr(node, "name", "") == "put")
    given = [(arg.arg, ast.unparse(arg.annotation)) for arg in put.args.args]
    assert given == [("dst", "Symmetric"), ("src", "Array"), ("pe", "int")]
    assert [arg.arg for arg in put.args.kwonlyargs] == ["stream"]


def test_every_operation_has_a_conformance_test():
    folders = [ROOT / "tests/conformance", ROOT / "tests/ops", ROOT / "tests/trace"]
    tests = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    families = ("atomic_", "wait_until_", "test_")  # their tests make the names
    bases = {op.base for op in gpushmem.ops.OPS.values() if not op.base.startswith(families)}
    assert [base for base in sorted(bases) if not re.search(rf"\b{base}(_block)?\b", tests)] == []


@pytest.mark.parametrize("path", tiers.SLOW)
def test_what_is_left_out_of_the_default_tier_exists(path):
    source = (ROOT / "tests" / path).read_text()
    known = {
        *re.findall(r"def (test_\w+)\(", source),
        *re.findall(r"^(Test\w+) = ", source, re.MULTILINE),
    }
    assert {"*"} == tiers.SLOW[path].keys() or tiers.SLOW[path].keys() <= known


def sources(*folders):
    """All files of the folders, the package's for one, with their text."""
    return {path: path.read_text() for folder in folders for path in sorted(folder.rglob("*.py"))}


def test_names_of_variables_are_settings():
    name = re.compile(r"\bGPUSHMEM_[A-Z_]+\b")
    for path, text in sources(PACKAGE).items():
        assert {*name.findall(text)} <= {*SETTINGS}, path.relative_to(ROOT)


def test_settings_are_read_through_the_table_only():
    read = re.compile(r"(?:environ(?:\.\w+\(|\[)|getenv\()\s*[\"']GPUSHMEM_")
    assert read.search('os.environ.get("GPUSHMEM_THREADS")')
    for path, text in sources(PACKAGE).items():
        if path.name != "settings.py":
            assert not read.search(text), path.relative_to(ROOT)


def test_the_messages_on_pages_of_errors_are_those_of_the_code():
    tables = [re.findall(r"^\| `(.+)` \| .+ \|$", page, re.MULTILINE) for page in PAGES.values()]
    nodes = (n for t in sources(PACKAGE, ROOT / "kernels").values() for n in ast.walk(ast.parse(t)))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    code = "\n".join(value for value in values if isinstance(value, str))
    parts = {part for table in tables for message in table for part in message.split("...")}
    assert all(2 <= len(table) <= 10 for table in tables)
    assert {part for part in parts if part not in code} <= OF_OTHERS <= parts


def test_the_page_of_a_trace_was_built_of_the_sources_that_are_here():
    folder = PACKAGE / "trace/page"
    names = ["package.json", "page.html", "style.css"]
    names += [f"src/{path.name}" for path in (folder / "src").iterdir()]
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in sorted(names)))
    built = (PACKAGE / "trace/page.html").read_text("utf-8")
    assert f'content="{digest.hexdigest()}"' in built, "run npm run build in gpushmem/trace/page"
