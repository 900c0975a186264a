"""The checker: what PEs did is recorded, then searched for accesses that nothing orders."""
