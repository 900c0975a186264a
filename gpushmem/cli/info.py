"""`gpushmem info`: versions, backends, and the hardware of this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from gpushmem import __version__
from gpushmem.cli.text import columns, wrapped
from gpushmem.errors import ShmemError
from gpushmem.size import format_size

__all__ = ["command"]


@click.command("info", short_help="Show versions, backends and hardware.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--env", is_flag=True, help="Print all environment variables and their values.")
def command(as_json: bool, env: bool) -> None:
    """Show versions, usable backends and why others are not, GPUs, networks, cores, memory.

    docs/doctor.md describes the keys of --json.
    """
    if env:
        rows = _settings()
        click.echo(json.dumps(rows, indent=2) if as_json else "\n".join(_settings_text(rows)))
        return
    from gpushmem.doctor import facts  # noqa: PLC0415  (not for --help)
    from gpushmem.doctor.system import System  # noqa: PLC0415

    told = facts.collect(System(), __version__, _backends(), _choice(), _nvshmem())
    click.echo(json.dumps(told, indent=2) if as_json else "\n".join(_text(told)))


def _backends() -> list[str]:
    from gpushmem.backends.registry import BACKENDS  # noqa: PLC0415

    return list(BACKENDS)


def _choice() -> dict[str, str | None]:
    """Return the backend that `init` would choose, and why."""
    from gpushmem.backends import selection  # noqa: PLC0415

    try:
        name, why = selection.choose()
    except ShmemError as error:
        return {"name": None, "why": str(error)}
    return {"name": name, "why": why}


def _nvshmem() -> dict[str, Any]:
    """Return the settings NVSHMEM would be given."""
    from gpushmem import settings  # noqa: PLC0415
    from gpushmem.backends.nvshmem import transport  # noqa: PLC0415

    heap = "GPUSHMEM_HEAP_SIZE"
    default = settings.get(heap, {})
    return transport.chosen(default if settings.reason(heap) else settings.get(heap))


def _settings() -> list[dict[str, str | None]]:
    """Return a row per setting: name, default, value if set, meaning, what is wrong."""
    from gpushmem import settings  # noqa: PLC0415
    from gpushmem.doctor.facts import plain, shown  # noqa: PLC0415

    return [
        {
            "name": name,
            "default": setting.default,
            "value": shown(name, os.environ[name]) if settings.is_set(name) else None,
            "meaning": setting.meaning,
            "problem": plain(why) if (why := settings.reason(name)) else None,
        }
        for name, setting in settings.SETTINGS.items()
    ]


def _settings_text(rows: list[dict[str, str | None]]) -> Iterator[str]:
    width = max(len(row["name"] or "") for row in rows)
    for row in rows:
        value = (
            f"= {row['value']}" if row["value"] is not None else f"[{row['default'] or 'unset'}]"
        )
        yield from wrapped(f"{row['name']:<{width}}  {value}", 4)
        yield from wrapped(f"    {row['meaning']}", 4)
        if row["problem"]:
            yield from wrapped(f"    PROBLEM: {row['problem']}", 4)


def _text(told: dict[str, Any]) -> Iterator[str]:
    """Format the sections as lines of at most 100 columns."""
    for key, (title, lines_of) in SECTIONS.items():
        lines = lines_of(told[key]) if told[key] else []
        yield f"{title}:" if lines else f"{title}: none"
        for line in lines:
            yield from wrapped("  " + line, 6)


def _pairs(table: dict[str, Any]) -> list[str]:
    return columns([(name, "-" if value is None else str(value)) for name, value in table.items()])


def _backend_lines(table: dict[str, Any]) -> list[str]:
    return [
        f"{name}: " + ("usable" if row["usable"] else f"no: {'; '.join(row['reasons'])}")
        for name, row in table.items()
    ]


def _backend_line(row: dict[str, Any]) -> list[str]:
    return [f"{row['name'] or 'none'}: {row['why']}"]


def _nvshmem_lines(row: dict[str, Any]) -> list[str]:
    told = [
        ("transport", row["transport"]),
        ("heap", _size(row["heap"])),
        ("adapters", row["hca"] or "NVSHMEM's choice"),
        ("adapter map", row["nic_map"] or "NVSHMEM's choice"),
    ]
    lines = columns(told) + [f"{name}={text}" for name, text in row["variables"].items()]
    return lines + ([f"PROBLEM: {row['problem']}"] if row["problem"] else [])


def _gpu(gpu: dict[str, Any]) -> str:
    told = [gpu["name"]]
    told += [_size(gpu["memory"])] if gpu["memory"] else []
    told += [f"compute capability {gpu['compute']}"] if gpu["compute"] else []
    told += ["MIG on"] if gpu["mig"] else []
    return f"{gpu['index']}: {', '.join(told)}"


def _port(port: dict[str, Any]) -> tuple[str, str]:
    told = f"{port['state']}, {port['link_layer']}, {port['rate']}, {port['gids']} GIDs"
    return f"{port['device']}:{port['number']}", told


def _interface(row: dict[str, Any]) -> tuple[str, str]:
    speed = f", {row['speed'] / 1000:g} Gbit/s" if row["speed"] else ""
    return row["name"], ("up" if row["up"] else "down") + speed


def _cores(row: dict[str, Any]) -> list[str]:
    quota = "no limit" if row["quota"] is None else f"{row['quota']:.3g}"
    return [f"{row['available']} of {row['present']}; cgroup: {quota}"]


def _memory(row: dict[str, Any]) -> list[str]:
    told = f"{_size(row['available'])} available of {_size(row['total'])}"
    return [f"{told}; cgroup: {_size(row['limit'])}"]


def _limits(row: dict[str, Any]) -> list[str]:
    shared = f"{_size(row['shm_free'])} free of {_size(row['shm_total'])}"
    rest = [(key.replace("_", " "), row[key]) for key in ("open_files", "max_map_count")]
    return columns([
        ("/dev/shm", shared),  # noqa: S108
        ("locked memory", _size(row["locked_memory"])),
        *[(key, "no limit" if value is None else str(value)) for key, value in rest],
    ])  # fmt: skip


def _size(nbytes: int | None) -> str:
    return "no limit" if nbytes is None else format_size(nbytes)


# Keys of --json: section title, and the function that formats the section.
SECTIONS: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
    "versions": ("Versions", _pairs),
    "backends": ("Backends", _backend_lines),
    "backend": ("Backend that init takes", _backend_line),
    "nvshmem": ("NVSHMEM settings", _nvshmem_lines),
    "driver": ("NVIDIA driver", lambda version: [version]),
    "gpus": ("GPUs", lambda rows: [_gpu(row) for row in rows]),
    "rdma": ("RDMA ports", lambda rows: columns([_port(row) for row in rows])),
    "interfaces": ("Network interfaces", lambda rows: columns([_interface(r) for r in rows])),
    "cores": ("Cores", _cores),
    "memory": ("Memory", _memory),
    "limits": ("Limits", _limits),
    "launchers": ("Launchers", _pairs),
    "nvshmem_library": ("NVSHMEM library", lambda folder: [folder]),
    "environment": ("Environment", lambda table: [f"{k}={v}" for k, v in table.items()]),
}
