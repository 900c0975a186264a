"""What a GPU's machine supplies, as code for this one."""
