"""A compiled kernel as code that runs a grid: loops, pieces between barriers, or fibers."""
