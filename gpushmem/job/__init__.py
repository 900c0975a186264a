"""What a job is: its shared memory and the board on which it can be seen from outside."""
