"""A job: its shared memory, and the board that makes its state visible from outside."""
