"""What the blocks of a launch have seen in symmetric memory, and may be given again.

Lines remember words by address, and by the *epoch* of the block, a number that is used once and
replaced whenever a thread of the block acquires; in each launch one word in four. Plain loads, `g`
and `get` share them, so a block that has seen a new value sees no older one afterwards. After MOST
reads the memory is read again: a loop that polls ends at some time, on a GPU as well.

Each launch has lines of its own, whose address is in its LAUNCH (`log`, an observer's own).
"""

from __future__ import annotations

import numpy as np

from gpushmem.backends.cpu.operations.access import copy_one
from gpushmem.backends.cpu.weak.pending import LINE, as_line
from gpushmem.native.memory import copy_bytes
from gpushmem.native.structs import offset, view
from gpushmem.simt.functions import device, kept
from gpushmem.simt.layout import BLOCK, FIBER, LAUNCH
from gpushmem.simt.thread import fiber_word, launch_word

__all__ = ["LINES", "acquire", "as_seen", "copy_as_seen", "forget", "may_be_old", "remembered"]

# Of a launch. Before them is one for numbers: `address` and `uses` are where symmetric memory
# begins and ends, `epoch` is the last that was given, `value` the state of the dice, `left` the
# number of accesses to the next interruption, `nap` how many threads nap.
LINES = 1024
MOST = 100
EVERY = 4  # words
LINE_BYTES, VALUE = LINE.itemsize, offset(LINE, "value")
as_block, as_fiber, as_launch = map(view, (BLOCK, FIBER, LAUNCH))
as_number = view(np.dtype([("v", "i8")]))


@kept
def acquire():
    """What the calling thread's block loads from now on is what is there now."""
    fiber = fiber_word()
    if fiber != 0:
        as_block(as_fiber(fiber).block).phase = 0


@device
def line_of(word):
    """The line of a word's address."""
    return as_launch(launch_word()).log + LINE_BYTES * (1 + ((word >> 3) & (LINES - 1)))


@device
def epoch():
    """The epoch of the calling thread's block."""
    block = as_block(as_fiber(fiber_word()).block)
    if block.phase == 0:
        last = as_line(as_launch(launch_word()).log)
        last.epoch += 1
        block.phase = last.epoch
    return block.phase


@device
def may_be_old(address):
    """Whether reads of a word may give what was there before, as the seed says."""
    return ((address >> 3) + as_launch(launch_word()).seed) & (EVERY - 1) == 0


@device
def remembered(address):
    """The address of what a read at `address` gives: a copy of the word, as seen before or now."""
    word = address & ~7
    at = line_of(word)
    line, now = as_line(at), epoch()
    if line.address != word or line.epoch != now or line.uses >= MOST:
        line.address, line.epoch, line.uses = word, now, 0
        line.value = as_number(word).v
    line.uses += 1
    return at + VALUE + (address & 7)


@device
def forget(address, nbytes):
    """Some bytes are written, or read as they are now."""
    first = address & ~7
    for word in range(first, min(address + nbytes, first + 8 * LINES), 8):
        if may_be_old(word):
            as_line(line_of(word)).address = 0


@device
def remembers():
    """Whether the calling thread's block does."""
    return fiber_word() != 0 and as_launch(launch_word()).log != 0


@device
def as_seen(address, nbytes):
    """The address of what `g` gives of an element."""
    if not remembers():
        return address
    if (address & 7) + nbytes > 8:
        forget(address, nbytes)
        return address
    return remembered(address) if may_be_old(address) else address


@device
def copy_as_seen(target, source, nbytes):
    """The copy of a `get`."""
    copy_one(target, source, nbytes)
    if remembers() and nbytes > 0:
        apart = target + nbytes <= source or source + nbytes <= target
        if apart and nbytes <= 8 * LINES:
            for word in range(source & ~7, source + nbytes, 8):
                if may_be_old(word):
                    start, end = max(word, source), min(word + 8, source + nbytes)
                    copy_bytes(target + start - source, remembered(start), end - start)
        else:
            forget(source, nbytes)
        forget(target, nbytes)
