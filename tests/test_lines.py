"""Names of arrays, found in the source line that made them."""

import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from gpushmem import source_lines
from gpushmem.source_lines import assigned_name, line_of


def made():
    return line_of(sys._getframe(1))


def test_the_name_a_line_assigns_to():
    plain = made()
    assert assigned_name(plain) == "plain"
    split = [
        made(),
    ]
    assert assigned_name(split[0]) == "split"
    annotated: object = made()
    assert assigned_name(annotated) == "annotated"
    split[0] = made()
    assert assigned_name(split[0]) == "split[0]"
    assert assigned_name(made()) is None


@pytest.mark.parametrize("columns", [False, True])
def test_several_on_a_line(monkeypatch, columns):
    """Without columns, as on Python 3.10, none of them has a name."""
    if not columns:
        monkeypatch.setattr(source_lines.Line, "column", -1)
    elif sys.version_info < (3, 11):
        pytest.skip("Python 3.10 knows no columns")
    first, second = made(), made()
    named = ["first", "second"] if columns else [None, None]
    assert [assigned_name(line) for line in (first, second)] == named
    third = made(); fourth = made()  # noqa: E702  # fmt: skip
    named = ["third", "fourth"] if columns else [None, None]
    assert [assigned_name(line) for line in (third, fourth)] == named
    fifth = made()
    assert assigned_name(fifth) == "fifth"


def test_no_source():
    scope = {"made": made}
    exec("x = made()", scope)
    assert assigned_name(scope["x"]) is None


def test_threads_at_once():
    """Other threads get their turn in the middle of parsing, as when a trace names arrays."""

    def let_others(*_):
        time.sleep(1e-4)

    files = sorted(str(path) for path in Path(pytest.__file__).parents[1].glob("_pytest/*.py"))[:16]

    def parse(depth):
        return parse(depth - 1) if depth else [source_lines._parsed(file) for file in files]

    gc.callbacks.append(let_others)
    try:
        with ThreadPoolExecutor(2) as threads:
            assert all(all(trees) for trees in threads.map(parse, (0, 9)))
    finally:
        gc.callbacks.remove(let_others)


@pytest.mark.parametrize("removed", [[], ["old_of_test"], ["old_of_test", "last_of_test"]])
def test_files_of_new_modules(monkeypatch, removed):
    """Modules that come later are found, whichever have gone meanwhile."""
    monkeypatch.setattr(source_lines, "_files", {})
    monkeypatch.setattr(source_lines, "_looked_at", [])
    for name in ("old_of_test", "last_of_test"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    source_lines.users_files()
    for name in removed:
        monkeypatch.delitem(sys.modules, name)
    for name in ("new_of_test", "newer_of_test"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules[name].__file__ = f"/somewhere/{name}.py"
    files = source_lines.users_files()
    assert files["new_of_test.py"] == "/somewhere/new_of_test.py"
    assert files["newer_of_test.py"] == "/somewhere/newer_of_test.py"
    assert files["test_lines.py"] == __file__
