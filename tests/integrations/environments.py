"""An environment for each stack: they do not fit into one, nor into that of the tests.

Each is an overlay on the environment of the tests, of which it sees what it has not got itself:
PyTorch and gpushmem. It is kept in the user's cache, under a digest of what is installed there.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import platformdirs

from gpushmem.doctor.stacks import STACKS

__all__ = ["environment", "without_repository"]

ROOT = platformdirs.user_cache_path("gpushmem-tests") / "stacks"
# What pip is asked for besides the stack itself, at the version that the doctor names.
BESIDES = {
    "DeepSpeed": ["setuptools", "wheel"],
    "transformers": ["accelerate==1.15.0"],
    "torchtitan": ["triton"],
    "SGLang": ["orjson"],
}
# Wheels that want what is not needed here, or what cannot be had beside this PyTorch.
WITHOUT = {
    "vLLM": {"torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp"},
    "NIXL": {"torch"},
}

# These have what they need from another one's; none of their own requirements is installed.
ABOVE = {"SGLang": "vLLM", "Dynamo": "vLLM"}

PACKAGES = sysconfig.get_path("purelib")


def environment(name):
    """The Python of the environment of a stack, which is made if it is not there."""
    stack = next(each for each in STACKS if each.name == name)
    wanted = [f"{stack.installed_by or stack.packages[0]}=={stack.tested}"]
    said = [
        sys.version,
        sys.prefix,
        *wanted,
        *BESIDES.get(name, []),
        *sorted(WITHOUT.get(name, [])),
    ]
    below = [environment(ABOVE[name])] if name in ABOVE else []
    said += below
    digest = hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]
    folder = ROOT / f"{re.sub('[^a-z0-9]+', '-', name.lower())}-{digest}"
    ROOT.mkdir(parents=True, exist_ok=True)
    with open(ROOT / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder, name, wanted, [*map(_packages_of, below), PACKAGES])
            (folder / "made").touch()
    return str(folder / "bin" / "python")


def without_repository():
    """The variables for a program that may not find this repository's folder `kernels`.

    transformers takes it for a package of that name.
    """
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}


def _packages_of(python):
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return str(Path(python).parent.parent / "lib" / version / "site-packages")


def _make(folder, name, wanted, below):
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    # A plain path would not do: there are .pth files below, of gpushmem's and numba-cuda's.
    lines = [f"import site; site.addsitedir({each!r})\n" for each in below]
    there = Path(_packages_of(folder / "bin" / "python"))
    (there / "zz_below.pth").write_text("".join(lines))
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile"]
    environ = {**os.environ, "DS_BUILD_OPS": "0"}
    if BESIDES.get(name):
        subprocess.run([*pip, *BESIDES[name]], check=True, env=environ)
    if name in WITHOUT or name in ABOVE:
        subprocess.run([*pip, "--no-deps", *wanted], check=True, env=environ)
        package = wanted[0].split("==")[0]
        wanted = _requirements(folder, package, WITHOUT[name]) if name in WITHOUT else ["pip"]
    built = ["--no-build-isolation"] if name in BESIDES else []
    subprocess.run([*pip, *built, *wanted], check=True, env=environ)


def _requirements(folder, package, without):
    code = f"""
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for line in requires({package!r}):
    wanted = Requirement(line)
    if wanted.marker is None or wanted.marker.evaluate({{"extra": ""}}):
        if wanted.name.lower() not in {without!r}:
            wanted.marker = None
            print(wanted)
"""
    command = [folder / "bin" / "python", "-c", code]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()
