"""Calls of operations on hosts, on every backend: their checks, their kernels, their readers."""
