"""The report: the accounts of a job's PEs as text. Which PE waits, at which line, for what.

The account of a PE has `host`, the user's threads that wait; `waits`, kernel threads that wait,
equal ones combined; `busy`, kernels that run without waiting; `unstarted`, kernels with blocks that
are not resident yet; `journal`, the recorded writes; `stacks`. See `pe_state.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpushmem.diagnosis.journal import Journals
from gpushmem.job.board import Board
from gpushmem.job.pe_ranges import compact

__all__ = ["condition_of", "gone", "report", "report_on", "waits_for"]

Account = dict[str, Any]
Accounts = dict[int, Account | None]


def report_on(board: Board, seconds: float, stacks: bool = False) -> str:
    """Request accounts from the PEs of a job, wait `seconds` for answers, and return the report."""
    return report(board.accounts(board.ask(stacks), seconds), gone(board))


def report(accounts: Accounts, gone: dict[int, str]) -> str:
    """Return the report on a job; PEs in the same state share a line.

    `gone` gives the reason for PEs that have no account.
    """
    notes, n_pes = Journals(accounts), len(accounts)
    alike: dict[tuple[str, str], dict[int, Told]] = {}
    for pe, account in accounts.items():
        told = [_missing(gone.get(pe))] if account is None else _of(account, notes, n_pes)
        for item in told:
            alike.setdefault((item.text, item.condition), {})[pe] = item
    lines = [line for those in alike.values() for line in _lines(those)]
    stacks = [
        f"\nPython stack of PE {pe}, {stack.rstrip()}"
        for pe, account in accounts.items()
        for stack in (account or {}).get("stacks", [])
    ]
    return "\n".join([*lines, *_relations(accounts, notes), *stacks]) + "\n"


def gone(board: Board) -> dict[int, str]:
    """Return, for each PE that cannot have an account, the reason."""
    told = {}
    for pe, (ended, code, state) in enumerate(board.pes[["ended", "code", "initialised"]].tolist()):
        if ended:
            told[pe] = "has ended" + (f" with exit code {code}" if code >= 0 else "")
        elif state != 1:
            told[pe] = "has called finalize" if state else "has not called init"
    return told


class Told(NamedTuple):
    """One statement about a PE."""

    text: str
    seconds: float | None = None  # how long it has been true
    condition: str = ""  # the condition that ends the wait
    about: tuple[str, ...] = ()  # lines that follow
    writers: tuple[tuple[str, int], ...] = ()  # source lines and PEs that wrote the awaited word


def _missing(why: str | None) -> Told:
    return Told(why or "does not answer: Python is inside native code, or the process is stopped")


def _lines(alike: dict[int, Told]) -> list[str]:
    """Format the lines for PEs in the same state."""
    some = next(iter(alike.values()))
    longest = max(told.seconds or 0 for told in alike.values())
    since = "" if some.seconds is None else f", for {longest:.1f} s"
    lines = [f"{compact(alike)}: {some.text}{since}"]
    if some.condition:
        lines.append(INDENT + some.condition)
    about: dict[str, list[int]] = {}
    for pe, told in alike.items():
        for line in told.about:
            about.setdefault(line, []).append(pe)
    for line, pes in about.items():
        lines.append(INDENT + line + ("" if len(pes) == len(alike) else f" ({compact(pes)})"))
    return lines + _last_written(alike)


def _last_written(alike: dict[int, Told]) -> list[str]:
    sites: dict[str, list[str]] = {}
    for pe, told in alike.items():
        for site, writer in told.writers:
            by = f"by PE {writer}" if len(alike) == 1 else f"PE {pe}'s by PE {writer}"
            sites.setdefault(site, []).append(by)
    which = any(len(told.writers) > 1 for told in alike.values())
    return [f"{INDENT}last written at {site}: {_some(by)}" for site, by in sites.items()] + [
        f"{INDENT}(the order of these writes is not known)"
    ] * which


def _some(texts: list[str]) -> str:
    more = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" and {more} more" if more > 0 else "")


INDENT = " " * 6
SHOWN = 8  # items of a list


# --- one PE


def _of(account: Account, notes: Journals, n_pes: int) -> list[Told]:
    """Describe the state of one PE."""
    if "error" in account:
        return [Told(f"state unknown: {account['error']}")]
    told = [_wait(account["pe"], wait, notes, n_pes) for wait in account["waits"]]
    if account["more"]:
        told.append(Told(f"... and {account['more']} more waits"))
    told += [
        Told(f"kernel {name} is running, and none of its threads waits") for name in account["busy"]
    ]
    told += [
        Told(f"kernel {kernel}: {rest} blocks start only when one of {resident} resident ones ends")
        for kernel, resident, rest in account["unstarted"]
    ]
    told += [Told(_host(wait), wait["seconds"]) for wait in account["host"]]
    return told or [Told("is not waiting in gpushmem")]


def _host(wait: Account) -> str:
    text = f"host, in {wait['what']} at {wait['line']}"
    if wait["for"]:
        text += f"{_team(wait['team'])}, waits for {compact(wait['for'])}"
    return text


def _team(team: Account | None) -> str:
    return f" of team {team['number']} ({compact(team['pes'])})" if team else ""


def _wait(pe: int, wait: Account, notes: Journals, n_pes: int) -> Told:
    more = f" and {wait['more']} more" if wait["more"] else ""
    block, thread = (tuple(wait[k]) for k in ("block", "thread"))
    who = f"kernel {wait['kernel']}, block {block}, thread {thread}{more}, {wait['site']}"
    about: list[str] = []
    writers: list[tuple[str, int]] = []
    if "object" in wait:
        about, writers = _about(pe, wait["object"], notes, n_pes)
    condition = condition_of(wait)
    if wait["host"]:
        who, condition = f"host, in {condition.removeprefix('is in ')}", ""
    return Told(who, wait["seconds"], condition, tuple(about), tuple(writers))


def condition_of(wait: Account) -> str:
    """Describe the condition a thread waits for."""
    what = wait["what"]
    if "arrived" in wait:
        return f"{what}: {wait['arrived']} of {wait['wanted']} threads have arrived"
    if "arrivals" in wait:
        return (
            f"{what}: {wait['arrivals']} of {wait['wanted']} arrivals of the phase have come, "
            f"{wait['bytes']} bytes are still to be copied"
        )
    if "lanes" in wait:
        return f"{what} waits for the lanes of mask {wait['lanes']:#x}"
    if "for" in wait:
        return f"{what}{_team(wait['team'])} waits for PE {wait['for']}"
    if "object" not in wait:
        return f"is in {what}"
    name = _name(wait["object"])
    if "sign" in wait:
        return f"{what}: {name} {wait['sign']} {wait['wanted']}, sees {wait['seen']}"
    return f"polls {name} with {what}, sees {wait['seen']}"


def _name(thing: Account) -> str:
    if not thing["made"]:
        return f"the word at offset {thing['offset']:#x}"
    return f"{thing['name'] or 'array'}[{thing['index']}]"


# --- the last writes


def _about(
    pe: int, thing: Account, notes: Journals, n_pes: int
) -> tuple[list[str], list[tuple[str, int]]]:
    """Describe the word that `pe` waits on, and list its writers."""
    name, offset = _name(thing), thing["offset"]
    made = f"allocated at {thing['made']}" if thing["made"] else "in no allocated array"
    about = [f"{name} is {thing['dtype']}, at offset {offset:#x} of the heap, {made}"]
    found = notes.of(offset)
    here = [(site, writer) for writer, target, site in found if target == pe]
    if not here:
        about.append(_unwritten(notes.unknown(offset, pe), n_pes))
        others = [f"PE {target}'s by PE {writer}, {site}" for writer, target, site in found]
        if others:
            about.append(f"{name} of other PEs was written: {_some(others)}")
    return about, here


def _unwritten(unknown: list[int], n_pes: int) -> str:
    """Describe a word without a known writer."""
    everybody = compact(range(n_pes))
    if not unknown:
        return f"no operation of {everybody} has written it"
    return (
        f"not among the last writes of {everybody}; older ones of {compact(unknown)} are not known"
    )


# --- waits between PEs


def _relations(accounts: Accounts, notes: Journals) -> list[str]:
    edges = {pe: waits_for(account, notes) for pe, account in accounts.items() if account}
    edges = {pe: to for pe, to in edges.items() if to}
    if not edges:
        return []
    alike: dict[tuple[int, ...], list[int]] = {}
    for pe, to in edges.items():
        alike.setdefault(tuple(sorted(to)), []).append(pe)
    told = "; ".join(f"{compact(pes)} for {compact(to)}" for to, pes in alike.items())
    lines = ["", f"Waits: {told}."]
    cycle = _cycle(edges)
    if cycle:
        lines.append("Wait cycle: " + " -> ".join(f"PE {pe}" for pe in cycle) + ".")
    return lines


def waits_for(account: Account, notes: Journals) -> set[int]:
    """Return the PEs that could end a wait of this one, as far as known."""
    pe, found = account["pe"], set()
    for wait in account.get("host", ()):
        found |= set(wait["for"])
    for wait in account.get("waits", ()):
        if "for" in wait:
            found.add(wait["for"])
        elif "object" in wait:
            written = notes.of(wait["object"]["offset"])
            found |= {writer for writer, target, _ in written if target == pe}
    return found - {pe}


def _cycle(edges: dict[int, set[int]]) -> list[int]:
    """Find a cycle of PEs, each waiting for the next; the first PE is repeated at the end."""

    def walk(path: list[int]) -> list[int]:
        for following in sorted(edges.get(path[-1], ())):
            if following in path:
                return [*path[path.index(following) :], following]
            if following not in seen:
                seen.add(following)
                found = walk([*path, following])
                if found:
                    return found
        return []

    seen: set[int] = set()
    for pe in edges:
        found = walk([pe])
        if found:
            return found
    return []
