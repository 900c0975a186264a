"""`gpushmem trace`: what a job did that was run with `gpushmem run --trace`."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Any

import click

from gpushmem.cli.help_layout import Group
from gpushmem.errors import ShmemError
from gpushmem.job.pe_ranges import compact
from gpushmem.size import format_size

__all__ = ["command", "text_of"]

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
STATES = "computing", "moving", "waiting", "compiling", "idle"  # of a PE, as in the summary
MOST = 10  # rows of a table, unless --all is given


@click.group(
    "trace", cls=Group, short_help="Show what a job did that was run with --trace.",
    examples=[
        "gpushmem run -n 4 --trace out program.py",
        "gpushmem trace summary out", "gpushmem trace open out", "gpushmem trace signals out",
        "gpushmem trace diff before after",
    ],
)  # fmt: skip
def command() -> None:
    """Show what a job did: `gpushmem run --trace DIR` records it."""


@command.command("summary", short_help="Print where the time went, and who waited for whom.")
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, times in ns.")
@click.option("--all", "everything", is_flag=True, help=f"Print all rows, not the first {MOST}.")
def summary(folder: Path, as_json: bool, everything: bool) -> None:
    """Print where each PE's time went, who waited for whom, and what took longest, by line."""
    data = _summary(folder)
    click.echo(json.dumps(data) if as_json else text_of(data, None if everything else MOST))


def text_of(data: dict[str, Any], most: int | None = MOST) -> str:
    """A summary as text, with at most so many rows of each table."""
    parts = (part(data, most) for part in (_head, _pes, _waits, _path, _ranges, _kernels, _lines))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


@command.command("open", short_help="Write the trace as one HTML page, and open it.")
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write to FILE; default: trace.html in DIR, or trace.pftrace with --perfetto.",
)  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Write the page only.")
@click.option("--perfetto", is_flag=True, help="Write a file for ui.perfetto.dev instead.")
def open_(folder: Path, output: Path | None, no_browser: bool, perfetto: bool) -> None:
    """Write a page with the timeline, who waited for whom, and tables, and open it in the browser.

    The page is one file that needs no network.
    """
    from gpushmem.trace import load, page  # noqa: PLC0415  (not for --help)
    from gpushmem.trace import perfetto as perfetto_file  # noqa: PLC0415

    path = output or folder / ("trace.pftrace" if perfetto else "trace.html")
    try:
        if perfetto:
            perfetto_file.write(load(folder), path)
        else:
            page.write(load(folder), path, folder.resolve().name)
    except (ShmemError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"wrote {path}, {format_size(path.stat().st_size)}")
    if perfetto:
        click.echo("open it at https://ui.perfetto.dev")
    elif not no_browser and not webbrowser.open(address := path.resolve().as_uri()):
        click.echo(f"no browser was found here: open {address}")


@command.command("diff", short_help="Print what changed from one trace to another.")
@click.argument("before", type=FOLDER, metavar="A")
@click.argument("after", type=FOLDER, metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, times in ns.")
@click.option("--all", "everything", is_flag=True, help=f"Print all rows, not the first {MOST}.")
def diff(before: Path, after: Path, as_json: bool, everything: bool) -> None:
    """Print what changed from trace A to trace B: where the time went, by kernel and by line."""
    from gpushmem.trace.summary import changes  # noqa: PLC0415

    data = changes(_summary(before), _summary(after))
    if as_json:
        click.echo(json.dumps(data))
        return
    most = None if everything else MOST
    for k, (title, found) in enumerate(data.items()):
        rows = [["change", "A", "B", "times", ""]]
        for row in found[:most]:
            more = row["b_ns"] - row["a_ns"]
            times = f"{row['a_times']} -> {row['b_times']}" if "a_times" in row else ""
            sign = "-" if more < 0 else "+"
            rows.append(
                [f"{sign}{time(abs(more))}", time(row["a_ns"]), time(row["b_ns"]), times, row["of"]]
            )
        lines = titled(title, rows, len(found), most)
        if lines:
            click.echo("\n".join([""] * (k > 0) + lines))


@command.command("signals", short_help="Print which signals were waited for the longest.")
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list, times in ns.")
@click.option("--all", "everything", is_flag=True, help=f"Print all rows, not the first {MOST}.")
def signals(folder: Path, as_json: bool, everything: bool) -> None:
    """Print which signals, and other words, threads waited for, how long, and who wrote them."""
    from gpushmem.trace.signals import signals as waited_for  # noqa: PLC0415  (not for --help)

    trace = _loaded(folder)
    found = waited_for(trace)
    if as_json:
        click.echo(json.dumps(found))
        return
    most = None if everything else MOST
    rows = [["waited", "waits", "longest", "PE", "signal", "written by", "longest wait"]]
    rows += [
        [
            time(row["ns"]), str(row["waits"]), time(row["longest_ns"]), str(row["pe"]),
            row["name"], compact(row["writers"]) if row["writers"] else "?", row["line"],
        ]
        for row in found[:most]
    ]  # fmt: skip
    lines = titled("Signals", rows, len(found), most) or ["no kernel waited for a signal"]
    click.echo("\n".join([*_lost(trace.lost), *lines]))


def _summary(folder: Path) -> dict[str, Any]:
    from gpushmem.trace.summary import summary as summarise  # noqa: PLC0415  (not for --help)

    return summarise(_loaded(folder))


def _loaded(folder: Path) -> Any:
    """The trace in a folder."""
    from gpushmem.trace import load  # noqa: PLC0415  (not for --help)

    try:
        return load(folder)
    except ShmemError as error:
        raise click.ClickException(str(error)) from None


def _head(data: dict[str, Any], _: Any) -> list[str]:
    pes = "1 PE" if data["n_pes"] == 1 else f"{data['n_pes']} PEs"
    return [f"{pes}, {time(data['ns'])}, {data['events']} events", *_lost(data["lost"])]


def _lost(lost: dict[int, int]) -> list[str]:
    return [
        f"PE {pe}: the oldest {n} events are lost; set GPUSHMEM_TRACE_EVENTS to keep more"
        for pe, n in lost.items()
    ]


def _pes(data: dict[str, Any], _: Any) -> list[str]:
    rows = [["PE", *STATES, "overlapped", "sent", "received"]]
    for pe in data["pes"]:
        of_moving = pe["overlap"] / pe["moving"] if pe["moving"] else 0
        rows.append(
            [
                str(pe["pe"]),
                *(f"{time(pe[s])} {pe[s] / max(data['ns'], 1):4.0%}" for s in STATES),
                f"{of_moving:.0%}", format_size(pe["sent"]), format_size(pe["received"]),
            ]
        )  # fmt: skip
    compiling = max(pe["compiling"] for pe in data["pes"])
    if compiling < data["ns"] / 10:
        return table(rows)
    return [
        *table(rows),
        f"This run compiled for {time(compiling)}: the next takes what it has compiled.",
    ]


def _waits(data: dict[str, Any], most: int | None) -> list[str]:
    rows = [["waited", "times", "longest", "PE", "in", "for PE", "until"]]
    for wait in data["waits"][:most]:
        until = f"{wait['by_what']}, {wait['by_line']}" if wait["by_what"] else "?"
        rows.append(
            [
                time(wait["ns"]), str(wait["times"]), time(wait["longest_ns"]), str(wait["pe"]),
                f"{wait['what']}, {wait['line']}",
                "?" if wait["by_pe"] is None else str(wait["by_pe"]), until,
            ]
        )  # fmt: skip
    return titled("Who waited for whom", rows, len(data["waits"]), most)


def _path(data: dict[str, Any], most: int | None) -> list[str]:
    """The critical path by PE, and by the wait that the PE ends then."""
    groups: dict[Any, list[int]] = {}
    for step in data["critical_path"]:
        then = step.get("then")
        released = (
            f"PE {then['pe']} in {then['what']}, {then['line']}" if then else "nobody: the end"
        )
        groups.setdefault((step["pe"], released), []).append(step["ended"] - step["began"])
    rows = [["time", "parts", "PE", "then releases"]]
    for (pe, released), spans in sorted(groups.items(), key=lambda item: -sum(item[1]))[:most]:
        rows.append([time(sum(spans)), str(len(spans)), str(pe), released])
    return titled("Critical path", rows, len(groups), most)


def _ranges(data: dict[str, Any], most: int | None) -> list[str]:
    states = STATES[:-1]  # not idle
    rows = [["time", "times", *states, "PE", "name"]]
    for row in data["ranges"][:most]:
        spent = [f"{row[s] / max(row['ns'], 1):.0%}" for s in states]
        rows.append([time(row["ns"]), str(row["times"]), *spent, str(row["pe"]), row["name"]])
    return titled("Ranges, and what their PE did in them", rows, len(data["ranges"]), most)


def _kernels(data: dict[str, Any], most: int | None) -> list[str]:
    rows = [["time", "times", "PE", "name"]]
    rows += [
        [time(row["ns"]), str(row["times"]), str(row["pe"]), row["name"]]
        for row in data["kernels"][:most]
    ]
    return titled("Kernels", rows, len(data["kernels"]), most)


def _lines(data: dict[str, Any], most: int | None) -> list[str]:
    rows = [["time", "times", "bytes", "what", "line"]]
    for row in data["lines"][:most]:
        moved = format_size(row["bytes"]) if row["bytes"] else ""
        rows.append([time(row["ns"]), str(row["times"]), moved, row["what"], row["line"]])
    return titled("Operations, by line", rows, len(data["lines"]), most)


def titled(title: str, rows: list[list[str]], n: int, most: int | None) -> list[str]:
    """A table under its title, which says how many rows are left out; nothing if it is empty."""
    if len(rows) == 1:
        return []
    left = f" (the first {most} of {n}; --all prints all)" if most is not None and n > most else ""
    return [f"{title}{left}", *table(rows)]


def table(rows: list[list[str]]) -> list[str]:
    """Rows of text as lines; numbers are at the right of their columns."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    right = [
        all(row[k].lstrip("+-")[:1].isdigit() or row[k] in ("", "?") for row in rows[1:])
        and k < len(widths) - 1
        for k in range(len(widths))
    ]
    return [
        "  ".join(
            f"{text:>{width}}" if at_right else f"{text:<{width}}"
            for text, width, at_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def time(ns: float) -> str:
    """Nanoseconds as text, in three digits."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= scale:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns:.0f} ns"
