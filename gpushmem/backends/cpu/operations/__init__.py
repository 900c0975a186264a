"""What operations do in kernels: a file per family, and what they share."""
