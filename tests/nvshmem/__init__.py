"""Tests of the nvshmem backend: on this machine's CPU by an emulation, or on GPUs (`-m gpu`)."""
