"""What a GPU provides in hardware, as CPU code."""
