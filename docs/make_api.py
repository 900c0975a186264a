"""Write what follows from the operation table: docs/api.md and gpushmem/__init__.pyi.

python docs/make_api.py
"""

import inspect
from pathlib import Path

from gpushmem import _HOME
from gpushmem.ops import OPS

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

from typing import Any, TypeAlias

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
        text = "\n    ".join(op.doc.splitlines()).replace("\n    \n", "\n\n")
        signature = str(inspect.signature(op.function)).replace("'", "")
        signature = signature.replace("stream=None", "stream: Any = None")
        lines.append(f'\ndef {op.name}{signature}:\n    """{text}\n    """\n')
    return "".join(lines)


if __name__ == "__main__":
    (ROOT / "docs/api.md").write_text(page())
    (ROOT / "gpushmem/__init__.pyi").write_text(stub())
