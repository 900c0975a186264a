"""What pyproject.toml cannot say: gpushmem_sim.pth goes to site-packages itself.

Python reads the .pth files there when it starts; with GPUSHMEM_SIM=1 this one lets numba.cuda run
on the CPU engine (`gpushmem.simulator`), also in programs that never import gpushmem.
"""

from setuptools import Distribution, setup


class WithData(Distribution):
    """A distribution of which `pip install -e`, too, installs data files: it asks `has_data`."""

    has_data = Distribution.has_data_files


class InstallData(Distribution().get_command_class("install_data")):
    """Installs data files where modules go."""

    def finalize_options(self):
        """Take that folder from `install`."""
        self.set_undefined_options("install", ("install_purelib", "install_dir"))
        super().finalize_options()


setup(
    distclass=WithData,
    data_files=[("", ["gpushmem_sim.pth"])],
    cmdclass={"install_data": InstallData},
)
