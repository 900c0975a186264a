"""Arrays and tensors in symmetric memory, by the names of the libraries whose types they have."""
