"""Device functions from LLVM bitcode for NVIDIA's GPUs, as code for this machine."""
