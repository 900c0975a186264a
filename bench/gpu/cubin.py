"""What of a cubin can be told without a GPU: the machine code of its functions."""

import struct

HEADER = struct.Struct("<40xQ10xHHH")  # of ELF64: where sections are, their size, count, names
SECTION = struct.Struct("<II8x8xQQ")  # name, type, offset, size


def functions(cubin):
    """The machine code of each function, by its name."""
    start, size, count, names = HEADER.unpack_from(cubin)
    sections = [SECTION.unpack_from(cubin, start + k * size) for k in range(count)]
    base, found = sections[names][2], {}
    for where, _, offset, length in sections:
        name = cubin[base + where : cubin.index(b"\0", base + where)]
        if name.startswith(b".text."):
            found[name[6:].decode()] = cubin[offset : offset + length]
    return found
