"""Basics of the engine: structures, memory, stacks, output, the modelled GPU."""
