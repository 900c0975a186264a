"""Write what follows from tables in the code: docs/settings.md and docs/doctor.md.

python docs/make_tables.py
"""

import textwrap
from pathlib import Path

from gpushmem.doctor.checks import CHECKS
from gpushmem.doctor.facts import KEYS
from gpushmem.doctor.nvshmem import VARIABLES
from gpushmem.settings import SETTINGS

DOCS = Path(__file__).parent

SETTINGS_HEAD = """# Environment variables

Written by `docs/make_tables.py` from `gpushmem/settings.py`. `gpushmem info --env` shows the same
with what is set. A variable that is set but empty counts as not set. A value that makes no sense
is an error that names the variable; `gpushmem run` looks at all of them before it starts a PE.
Options of `gpushmem run` come before variables, arguments of `init` before both.

| variable | default | meaning |
| --- | --- | --- |
"""
NVSHMEM_HEAD = """
## Variables of NVSHMEM

NVSHMEM reads these, not gpushmem; `gpushmem doctor` looks whether they fit the machine. Defaults
are those of NVSHMEM 3.4 to 3.7. All variables: [NVSHMEM's
documentation](https://docs.nvidia.com/nvshmem/api/gen/env.html).

| variable | default | meaning |
| --- | --- | --- |
"""
DOCTOR_HEAD = """# What this machine has, and what stands in the way

Written by `docs/make_tables.py` from `gpushmem/doctor`.

`gpushmem info` tells what there is, `gpushmem doctor -n N` what jobs of N PEs on this machine
would trip over. Both only look: at files below /proc, /sys and /dev, at installed packages, and at
what `nvidia-smi`, `ldconfig`, `mpirun --version` and `srun --version` print. Neither uses a GPU
nor imports a CUDA package.

`doctor` gives every check a verdict: **ok**; **warning**, it works, but slower or not always;
**problem**, it will not work; **not applicable**. It exits with 1 if there is a problem, else with
0. `--all` prints checks that do not apply, too. `--json` gives an object with `n_pes`, `checks` (a
list of objects with `name`, `title`, `concerns`, `verdict`, `found`, `fix`, `source`) and
`summary` (a list of sentences).

The checks of GPUs and networks follow NVIDIA's documentation, NVSHMEM's sources and what its users
report. They were tried on trees of files with the layout of such machines and on output of
`nvidia-smi` in its documented form, **not on a machine with several GPUs, RDMA adapters or NVLink
between nodes**. What a check cannot see, it cannot tell: that a cable is slow, a switch drops
packets, an interface has no address.

## The checks
"""
CONCERNS = {"cpu": "the cpu backend", "nvshmem": "NVSHMEM on GPUs", "both": "every backend"}
INFO_HEAD = """
## The keys of `gpushmem info --json`

| key | value |
| --- | --- |
"""


def settings_page():
    """The page of environment variables as text."""
    ours = (_row(s.name, s.default or "", s.meaning) for s in SETTINGS.values())
    theirs = (
        _row(v.name, v.default, v.meaning + (f": {', '.join(v.choices)}" if v.choices else ""))
        for v in VARIABLES.values()
    )
    return SETTINGS_HEAD + "".join(ours) + NVSHMEM_HEAD + "".join(theirs)


def _row(name, default, meaning):
    default = f"`{default}`" if default else ""
    return f"| `{name}` | {default} | {meaning} |\n"


def doctor_page():
    """The page of checks, and of what `info` tells, as text."""
    sections = [f"\n### {check.name}\n\n{_section(check)}\n" for check in CHECKS]
    keys = [f"| `{key}` | {meaning} |\n" for key, meaning in KEYS.items()]
    return DOCTOR_HEAD + "".join(sections) + INFO_HEAD + "".join(keys)


def _section(check):
    text = f"{check.title}; concerns {CONCERNS[check.concerns]}. {check.meaning} {_source(check)}"
    return textwrap.fill(text, 100, break_on_hyphens=False, break_long_words=False)


def _source(check):
    if check.source.startswith("docs/"):  # a page of ours, beside this one
        page = check.source.removeprefix("docs/")
        return f"See [{page}]({page})."
    return f"See <{check.source}>."


if __name__ == "__main__":
    (DOCS / "settings.md").write_text(settings_page())
    (DOCS / "doctor.md").write_text(doctor_page())
