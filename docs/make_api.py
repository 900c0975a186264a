"""Write docs/api.md from the operation table: python docs/make_api.py."""

import inspect
from pathlib import Path

from gpushmem.ops import OPS

HEAD = """# Operations

Written by `docs/make_api.py` from the operation table (`gpushmem/ops/declarations.py`).

Every operation can be called in kernels; those with a mark can be called on the host too, then
with `stream=` to take their turn on a stream. A `_warp` or `_block` form is called by every thread
of the warp or block, with the same arguments; an `_nbi` form completes at the next `quiet`.

| operation | forms | host |
| --- | --- | --- |
"""


def page():
    """The whole page as text."""
    bases = list(dict.fromkeys(op.base for op in OPS.values()))
    lines = []
    for base in bases:
        forms = [op.name for op in OPS.values() if op.base == base != op.name]
        names = ", ".join(f"`{form.removeprefix(base)}`" for form in forms)
        lines.append(f"| [`{base}`](#{base}) | {names} | {'yes' if OPS[base].host else ''} |\n")
    sections = []
    for base in bases:
        op = OPS[base]
        signature = ", ".join(inspect.signature(op.function).parameters)
        sections.append(
            f"\n## {base}\n\n`{base}({signature.replace('stream', '*, stream=None')})`\n"
        )
        sections.append(f"\n{op.doc}\n")
    return HEAD + "".join(lines) + "".join(sections)


if __name__ == "__main__":
    Path(__file__).with_name("api.md").write_text(page())
