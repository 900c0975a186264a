"""`gpushmem doctor`: check this machine for problems that would stop a job, and how to fix them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import click

from gpushmem import settings
from gpushmem.cli.help_layout import Command
from gpushmem.cli.text import wrapped
from gpushmem.doctor import checks, stacks
from gpushmem.doctor.check import Row
from gpushmem.doctor.facts import plain
from gpushmem.doctor.system import System

__all__ = ["command"]

MARKS = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM"}
HIDDEN = "not applicable"


@click.command(
    "doctor",
    cls=Command,
    examples=["gpushmem doctor -n 8"],
    short_help="Check this machine for problems.",
)
@click.option(
    "-n", "n_pes", type=click.IntRange(1, settings.MOST), default=1, show_default=True,
    help="Number of PEs of the job on this machine.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--stacks", "of_stacks", is_flag=True,
    help="List instead which stacks are installed, as vLLM, and how each uses gpushmem.",
)  # fmt: skip
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Also print checks that do not apply."
)
def command(n_pes: int, as_json: bool, of_stacks: bool, everything: bool) -> None:
    """Check whether this machine can run jobs of N PEs, and print how to fix problems.

    Changes nothing and uses no GPU. Exit code: 0 without a problem, 1 otherwise. docs/doctor.md
    describes the checks.
    """
    system = System()
    if of_stacks:
        found = stacks.find(system)
        if as_json:
            click.echo(json.dumps({"stacks": [each.as_json() for each in found]}, indent=2))
        else:
            click.echo("\n".join(_stacks(found, everything)))
        return
    rows = checks.run(system, n_pes)
    summary = checks.summary(system, rows, n_pes)
    if as_json:
        told = {"n_pes": n_pes, "checks": [row.as_json() for row in rows], "summary": summary}
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo("\n".join(_text(rows, summary, everything)))
    sys.exit(any(row.verdict == "problem" for row in rows))


def _stacks(found: list[stacks.Found], everything: bool) -> Iterator[str]:
    shown = [each for each in found if everything or each.version]
    for each in shown:
        tested = each.stack.tested
        said = f"{each.version or 'not installed'}, tested with {tested}"
        yield from wrapped(f"{each.mark:<8} {each.stack.name:<14} {said}", 24)
        yield f"         {each.stack.line}"
    if missing := [each.stack.name for each in found if each not in shown]:
        yield from wrapped(f"{'-':<8} Not installed: {', '.join(missing)}", 9)
    yield ""
    yield "Each line makes gpushmem do the communication: docs/integrations.md."


def _text(rows: list[Row], summary: list[str], everything: bool) -> Iterator[str]:
    shown = [row for row in rows if everything or row.verdict != HIDDEN]
    width = max(len(row.title) for row in shown)
    for row in shown:
        mark = MARKS.get(row.verdict, "-")
        yield from wrapped(f"{mark:<8} {row.title:<{width}}  {plain(row.found)}", width + 11)
        if row.fix:
            yield from wrapped(f"         Fix: {plain(row.fix)}", 14)
            yield from wrapped(f"         See: {row.source}", 9)
    hidden = [row.name for row in rows if row not in shown]
    if hidden:
        yield from wrapped(f"{'-':<8} Not applicable: {', '.join(hidden)}", 9)
    yield ""
    for line in summary:
        yield from wrapped(line, 0)
