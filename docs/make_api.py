"""Write docs/api.md and gpushmem/__init__.pyi from the operation table, docs/host.md likewise.

python docs/make_api.py
"""

import importlib
import inspect
from pathlib import Path

import gpushmem
from gpushmem import _HOME
from gpushmem.ops import OPS
from gpushmem.ops.constants import COMPARISONS

ROOT = Path(__file__).parent.parent
HEAD = """# Operations

Written by `docs/make_api.py` from the operation table (`gpushmem/ops/declarations.py`).

Operations are called in kernels or on the host, where marked. With `stream=` those marked "stream"
take their turn on a stream when the host calls them, and return nothing. A `_warp` or `_block` form
is called by every thread of the warp or block of a kernel, with the same arguments; an `_nbi` form,
in kernels too, completes at the next `quiet`.

| operation | forms | kernel | host |
| --- | --- | --- | --- |
"""


def page():
    """The page of operations as text."""
    firsts = {}  # the plain forms, if there are such
    for op in OPS.values():
        firsts.setdefault(op.base, op)
    lines = []
    for base, op in firsts.items():
        forms = [form.name for form in OPS.values() if form.base == base and form is not op]
        names = ", ".join(f"`{form.removeprefix(base)}`" for form in forms)
        host = "" if not op.host else "yes, stream" if "stream" in _signature(op) else "yes"
        lines.append(
            f"| [`{op.name}`](#{op.name}) | {names} | {'yes' if op.kernel else ''} | {host} |\n"
        )
    sections = []
    for op in firsts.values():
        params = [str(p.replace(annotation=p.empty)) for p in _signature(op).values()]
        signature = ", ".join(params).replace("stream=None", "*, stream=None")
        sections.append(f"\n## {op.name}\n\n`{op.name}({signature})`\n\n{op.doc}\n")
    return HEAD + "".join(lines) + "".join(sections)


def _signature(op):
    return inspect.signature(op.function).parameters


STUB_HEAD = '''"""Public names for type checkers and editors; docs/make_api.py writes it."""

from typing import Any, TypeAlias, overload

from numpy.typing import NDArray

'''
ALIASES = """
Symmetric: TypeAlias = SymmetricArray
Array: TypeAlias = DeviceArray | NDArray[Any]
Scalar: TypeAlias = Any

__version__: str
"""


def stub():
    """The stub of the package: public names where they are, operations with all their forms."""
    lines = [STUB_HEAD]
    for module, names in _HOME.items():
        lines += [f"from {module} import {name} as {name}\n" for name in names]
    lines.append(ALIASES)
    for op in OPS.values():
        forms = _forms(op)
        text = "\n    ".join(op.doc.splitlines()).replace("\n    \n", "\n\n")
        bodies = [f'\n    """{text}\n    """\n', *[" ...\n"] * (len(forms) - 1)]
        mark = "@overload\n" if len(forms) > 1 else ""
        lines += [
            f"\n{mark}def {op.name}{form}:{body}" for form, body in zip(forms, bodies, strict=True)
        ]
    return "".join(lines)


# What operations with a timeout return without one, and with one.
WITH_TIMEOUT = {
    "signal_wait_until": ("int", "bool"),
    "wait_until": ("None", "bool"),
    "wait_until_all": ("None", "bool"),
}


def _forms(op):
    """The signatures of an operation: several if what it returns depends on its arguments."""
    signature = inspect.signature(op.function)
    returned = WITH_TIMEOUT.get(op.base.removesuffix("_vector"))
    if returned is None:
        forms = [signature]
    else:
        timeouts = {"annotation": "None", "default": None}, {"annotation": "int"}
        forms = [
            _replaced(signature, "timeout_ns", **timeout).replace(return_annotation=what)
            for timeout, what in zip(timeouts, returned, strict=True)
        ]
    if "stream" in signature.parameters:
        forms = _with_stream(signature, forms)
    return [str(form).replace("'", "") for form in forms]


def _with_stream(signature, forms):
    """Nothing is returned where a stream is given."""
    if all(form.return_annotation in ("None", "Scalar") for form in forms):
        return [_replaced(form, "stream", annotation="Any", default=None) for form in forms]
    waiting = [_replaced(form, "stream", annotation="None", default=None) for form in forms]
    later = _replaced(signature, "stream", annotation="Any").replace(return_annotation="None")
    return [*waiting, later]


def _replaced(signature, name, annotation, default=inspect.Parameter.empty):
    """A signature with another annotation and default of one parameter."""
    parameters = [
        p.replace(annotation=annotation, default=default) if p.name == name else p
        for p in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)


HOST_HEAD = """# On the host

Written by `docs/make_api.py` from the docstrings. What a program calls outside kernels; the
operations, most of which the host can call, too, have [a page of their own](api.md).

"Collective" means that all PEs call, in the same order. Shapes and dtypes are NumPy's.
"""
# Headings of the page, and what stands under them: public names, and classes by their modules.
HOST = {
    "Beginning and end": ["session", "init", "finalize", "is_initialized", "spawn"],
    "Symmetric memory": [
        "empty", "zeros", "ones", "full", "array", "alloc_bytes", "free", "heap_stats",
        "HeapStats",
    ],
    "Other memory": ["device_array", "to_device", "register", "unregister"],
    "Arrays": ["DeviceArray", "SymmetricArray", "MulticastArray"],
    "Kernels": ["jit", "gpushmem.kernel:Kernel", "gpushmem.kernel:Launch"],
    "Streams and waiting": ["stream", "synchronize", "set_timeout"],
    "Teams": ["Team"],
}  # fmt: skip
CONSTANTS = """
## Constants

| for | names |
| --- | --- |
| `cmp` of waits and tests | {comparisons} |
| `op` of `signal_op` and `put_signal` | `SIGNAL_SET`, `SIGNAL_ADD` |
| teams | `TEAM_WORLD`, of all PEs; `TEAM_NODE`, of those on this machine; `TEAM_SHARED`, of \
those whose memory can be loaded from; `TEAM_INVALID`, no team |

## Errors

All derive from `ShmemError`, and from the built-in that stands beside them.

| error | is a | means |
| --- | --- | --- |
"""


def host_page():
    """The page of what is not an operation as text."""
    lines = [HOST_HEAD]
    for heading, names in HOST.items():
        lines.append(f"\n## {heading}\n")
        for name in names:
            module, _, inner = name.rpartition(":")
            thing = getattr(importlib.import_module(module) if module else gpushmem, inner)
            lines += _class(thing) if isinstance(thing, type) else [_entry(inner, thing)]
    signs = ", ".join(
        f"`{name}` ({COMPARISONS[getattr(gpushmem, name)]})"
        for name in gpushmem.__all__
        if name.startswith("CMP_")
    )
    lines.append(CONSTANTS.format(comparisons=signs))
    for name in _HOME["gpushmem.errors"]:
        error = getattr(gpushmem, name)
        also = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        lines.append(f"| `{name}` | {also} | {inspect.getdoc(error).splitlines()[0]} |\n")
    return "".join(lines)


def _entry(name, function, mark="###"):
    signature = str(_plain(inspect.signature(function)))
    shown = f"{name}{signature}".replace("(self, ", "(").replace("(self)", "()")
    shown = shown.replace("<class 'numpy.float64'>", "float64")
    return f"\n{mark} {name}\n\n`{shown}`\n\n{inspect.getdoc(function)}\n"


def _plain(signature):
    """A signature without annotations: the docstrings say what is taken."""
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


def _class(cls):
    """A class and its own public members; those that can only be read have a line each."""
    lines = [f"\n### {cls.__name__}\n\n{inspect.getdoc(cls)}\n"]
    bases = [b.__name__ for b in cls.__bases__ if b.__name__ in gpushmem.__all__]
    lines += [f"\nHas what `{base}` has, and:\n" for base in bases]
    own = {name: member for name, member in vars(cls).items() if not name.startswith("_")}
    read = [
        f"- `{name}`: {' '.join(inspect.getdoc(member).split())}\n"
        for name, member in own.items()
        if isinstance(member, property)
    ]
    calls = [
        _entry(name, member, "####")
        for name, member in own.items()
        if inspect.isfunction(member) and name not in INSIDE
    ]
    return lines + (["\n", *read] if read else []) + calls


INSIDE = ("native",)  # what is for the library


if __name__ == "__main__":
    (ROOT / "docs/api.md").write_text(page())
    (ROOT / "docs/host.md").write_text(host_page())
    (ROOT / "gpushmem/__init__.pyi").write_text(stub())
