"""What a traced PE records: in its kernels, and on its host."""
