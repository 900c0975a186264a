"""What a kernel's machine code contains, read from PTX and SASS."""
