"""What every backend needs of a kernel: its launch's shape and arguments, and its code's key.

`fingerprint` says which machine code is the same, `toolchain` who made it. Nothing here compiles.
"""
