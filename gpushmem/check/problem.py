"""What a problem is: what a report tells of it, as text for people and as data for programs."""

from __future__ import annotations

from typing import Any

from gpushmem.check.accesses import Access
from gpushmem.check.history import History

__all__ = ["Problem"]


class Problem:
    """One problem, in words."""

    history: History
    accesses: list[tuple[Access, int]]  # each with the thread that makes it
    seen: int
    label = "memory"  # of what `memory` tells

    def kind(self) -> str:
        """The kind of bug."""
        raise NotImplementedError

    def what(self) -> str:
        """What is wrong, in a sentence."""
        raise NotImplementedError

    def memory(self) -> str:
        """Where."""
        raise NotImplementedError

    def cure(self) -> str:
        """What is missing."""
        raise NotImplementedError

    def text(self) -> str:
        """For people."""
        lines = [f"{self.kind()}: {self.what()}", f"  {self.label}: {self.memory()}"]
        for access, thread in self.accesses:
            lines.append(f"  {self.who(access, thread)} {self.does(access)} it at {access.site}")
            if source := self.source(access.site):
                lines.append(f"      {source}")
        lines.append(f"  {self.cure()}")
        return "\n".join(lines) + "\n"

    def data(self) -> dict[str, Any]:
        """For programs."""
        return {
            "kind": self.kind(),
            "message": self.what(),
            "memory": self.memory(),
            "accesses": [
                {
                    "by": self.who(access, thread), "does": self.does(access), "line": access.site,
                    "operation": access.op.name if access.op else None,
                }
                for access, thread in self.accesses
            ],
            "cure": self.cure(),
            "count": self.seen,
        }  # fmt: skip

    def key(self) -> Any:
        """What other runs of the job find is the same if this is."""
        return self.kind(), tuple((access.site, self.does(access)) for access, _ in self.accesses)

    # --- the parts

    def does(self, access: Access) -> str:
        """What an access does."""
        return _does(access)

    def who(self, access: Access, thread: int) -> str:
        """Who makes an access."""
        return ("" if self.history.without_pes else f"PE {access.pe}, ") + self._who(access, thread)

    def _who(self, access: Access, thread: int) -> str:
        if not access.launch:
            return "the host,"
        pe = self.history.pes[access.pe]
        facts = pe.launch_facts[access.launch]
        threads = pe.launches[access.launch].threads
        block, lane = divmod(thread, threads)
        if facts["kernel"].endswith(" on the host"):
            return "the host,"
        if facts.get("work"):
            return f"{facts['kernel']},"
        each = f"block {block}" if access.op and access.op.scope == "block" else (
            f"block {block}, thread {lane}"
        )  # fmt: skip
        return f"kernel {facts['kernel']}, {each},"

    def source(self, site: str) -> str:
        """The text of a line."""
        return self.history.source(site)


def _does(access: Access) -> str:
    verb = "writes" if access.writes else "reads"
    return f"{access.op.name} {verb}" if access.op else verb
