"""What pyproject.toml cannot say.

gpushmem_sim.pth goes to site-packages itself. Python reads the .pth files there when it starts;
with GPUSHMEM_SIM=1 this one lets numba.cuda run on the CPU engine (`gpushmem.simulator`), also in
programs that never import gpushmem.

A wheel that is built where the package's dependencies are installed, without isolation, has the
engine's functions compiled (`gpushmem.precompile`), and is for this version of Python.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Distribution, setup

COMPILED = find_spec("numba_cuda") is not None
HERE = Path(__file__).parent


class WithData(Distribution):
    """A distribution of which `pip install -e`, too, installs data files: it asks `has_data`."""

    has_data = Distribution.has_data_files

    def has_ext_modules(self):
        """Whether its wheel is for this platform and Python."""
        return COMPILED


class InstallData(Distribution().get_command_class("install_data")):
    """Installs data files where modules go."""

    def finalize_options(self):
        """Take that folder from `install`."""
        self.set_undefined_options("install", ("install_purelib", "install_dir"))
        super().finalize_options()


class BuildPy(Distribution().get_command_class("build_py")):
    """Copies the package, and compiles the engine's functions beside it."""

    def run(self):
        """Compile what the examples need; as an editable package, nothing."""
        super().run()
        if COMPILED and not self.editable_mode:
            folder = Path(self.build_lib).resolve()
            every = sorted((HERE / "examples").glob("*.py"), key=lambda e: e.name != "ring.py")
            examples = [each for each in every if "import torch" not in each.read_text()]
            command = [sys.executable, "-m", "gpushmem.precompile", folder / "gpushmem/compiled"]
            environ = os.environ | {"PYTHONPATH": str(folder)}
            subprocess.run([*command, *examples], env=environ, cwd=folder, check=True)


setup(
    distclass=WithData,
    data_files=[("", ["gpushmem_sim.pth"])],
    cmdclass={"install_data": InstallData, "build_py": BuildPy},
)
