"""nvshmem4py's interface on gpushmem, module by module under the same names."""

__version__ = "0.4.1"
__version_tuple__ = (0, 4, 1)
version = __version__
