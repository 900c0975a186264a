"""What of a cubin can be told without a GPU: how much machine code, and whether two are alike."""

import struct

HEADER = struct.Struct("<40xQ10xHHH")  # of ELF64: where sections are, their size, count, names
SECTION = struct.Struct("<II8x8xQQ")  # name, type, offset, size


def text(cubin):
    """The machine code of all functions, in the order of the file."""
    start, size, count, names = HEADER.unpack_from(cubin)
    sections = [SECTION.unpack_from(cubin, start + k * size) for k in range(count)]
    base = sections[names][2]
    code = b""
    for name, _, offset, length in sections:
        end = cubin.index(b"\0", base + name)
        if cubin[base + name : end].startswith(b".text."):
            code += cubin[offset : offset + length]
    return code
