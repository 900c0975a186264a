"""The GPU of a PE, through the driver: memory, arrays, streams, modules."""
