"""The symmetric heap, arrays in device memory, and registered buffers."""
