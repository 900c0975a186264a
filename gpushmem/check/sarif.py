"""The report in SARIF 2.1.0, which code hosts and editors show at the lines.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpushmem.check.accesses import line_in
from gpushmem.check.history import History
from gpushmem.check.report import KINDS, Problem

__all__ = ["log_of", "result"]

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def log_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    """A SARIF log of these results."""
    rules = [{"id": kind, "shortDescription": {"text": text}} for kind, text in KINDS.items()]
    driver = {"name": "gpushmem", "version": version("gpushmem"), "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def result(history: History, problem: Problem) -> dict[str, Any]:
    """A problem, as a result of a log."""
    data = problem.data()
    places = [_location(history, access) for access in data["accesses"]]
    return {
        "ruleId": data["kind"],
        "level": "error",
        "message": {"text": f"{data['message']}: {data['memory']}; {data['cure']}"},
        "locations": places[:1],
        "relatedLocations": [{"id": k, **place} for k, place in enumerate(places[1:], 1)],
    }


def _location(history: History, access: dict[str, Any]) -> dict[str, Any]:
    file, _, number = line_in(access["line"]).rpartition(":")
    path = Path(history.files.get(file, file))
    uri = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    place: dict[str, Any] = {"artifactLocation": {"uri": str(uri).replace(os.sep, "/")}}
    if number.isdigit():
        place["region"] = {"startLine": int(number)}
    text = f"{access['by']} {access['does']} it"
    return {"physicalLocation": place, "message": {"text": text}}
