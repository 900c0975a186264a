"""What the engine is made of: structures, memory, stacks, output, the GPU that is modelled."""
