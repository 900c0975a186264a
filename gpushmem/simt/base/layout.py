"""The native structures of the engine: one dtype each, see `native/structs`."""

from gpushmem.artifacts.gpu_model import MAX_WARPS
from gpushmem.native.structs import struct

# The codes of threads in lockstep, at the beginning of a block's frame, say where each goes on. One
# that has returned has EXITED; PARKED is the bit of one that stands at a barrier.
CODE_BYTES, EXITED, PARKED = 8, 0, 1
FRAME_ALIGN = 256  # of a frame: no local array in it can be aligned to more

THREAD = struct(
    # What a thread knows about itself: the hidden context handed to every function. It does not
    # change while the thread runs, so the optimiser may keep all of it in registers.
    ("tid", "i4", 3),
    ("bid", "i4", 3),
    ("bdim", "i4", 3),
    ("gdim", "i4", 3),
    # For an observer, and in loops only if there is one: its number in the launch; the launch's
    # `places`; and the observer's own, which a thread may change: at first `number` * SPREAD.
    ("number", "i8"),
    ("places", "i8"),
    ("mark", "i8"),
    ("shared", "i8"),  # this block's shared arrays, static ones first
    ("dynamic_shared", "i8"),  # bytes of dynamic shared memory
    ("user", "i8"),  # the launch's `user` word: the embedder's own data
    ("launch", "i8"),
    ("fiber", "i8"),  # 0 in a kernel that never waits
)

SPREAD = -0x61C8864680B583EB  # odd, so no two threads have the same multiple

GROUP = struct(
    # Threads that meet: a grid, a block, or a warp of it.
    ("arrived", "i8"),
    ("alive", "i8"),  # threads that have not returned yet
    ("generation", "i8"),  # how often the group has met
    ("votes", "i8"),  # how many arrived with a true predicate
    ("result", "i8"),  # result of the votes of the last meeting
    ("size", "i8"),  # threads it began with
    ("first", "i8"),  # FIBER of the first to arrive
    ("mark", "i8"),  # of the call it is in; 0: none, or a barrier
    ("words", "i8"),  # address of what `mark` is made of, see `groups`
    ("acted", "i8"),  # an embedder's own: which thread acts in the call
)

WARP = struct(
    # 32 threads of a block; see `synchronization` for how they exchange values.
    ("all", GROUP),
    ("living", "i8"),  # bit per lane that has not returned yet
    ("waiting", "i8"),  # bit per lane that waits in a warp operation
    ("fibers", "i8", 32),
)

FIBER = struct(
    # One thread of a resident block, a member of the launch's ring of runnable threads.
    ("sp", "i8"),
    ("next", "i8"),
    ("prev", "i8"),
    ("next_free", "i8"),
    ("stack_top", "i8"),
    ("launch", "i8"),  # LAUNCH in whose ring it is: that of the core which runs it
    ("block", "i8"),
    ("warp", "i8"),
    ("lane", "i8"),
    # Its part in a warp operation.
    ("op", "i8"),
    ("mask", "i8"),
    ("value", "i8"),
    ("argument", "i8"),
    ("result", "i8"),
    # Its wait; `what` is 0 when it does not wait.
    ("what", "i8"),  # C string: the operation
    ("site", "i8"),  # C string: "file:line in function" of the kernel's line
    ("address", "i8"),  # the object waited on
    ("compare", "i8"),  # how, as the waiting operation numbers it
    ("wanted", "i8"),
    ("width", "i8"),  # bytes of the compared value, negative if it is signed
    ("waits", "i8"),  # how many waits it has begun
    ("clock", "i8"),  # an observer's own, as are the next three
    ("call", "i8"),
    ("poll", "i8"),
    ("news", "i8"),
    ("looked", "i8"),  # where a function of a bitcode library has looked last, ...
    ("saw", "i8"),  # what it saw there,
    ("looks", "i8"),  # ... and how often it has looked
    ("together", "i8"),  # whether its wait is that of all threads of the block
    ("thread", THREAD),
)

BLOCK = struct(
    # A resident block of a kernel that waits. Its shared memory follows it.
    ("next_free", "i8"),
    ("next_made", "i8"),
    ("shared", "i8"),
    ("index", "i8"),
    ("phase", "i8"),  # an observer's own, as are the next two
    ("met_at", "i8"),
    ("met_by", "i8"),
    ("began", "i8"),  # when it became resident, in `ticks`, if there is a `block_ended`
    ("owed", "i8"),  # an embedder's own: the site of what must be undone before it ends; 0: nothing
    ("late", "i8"),  # an embedder's own: a list of what it has begun; 0: of nothing
    ("counted", "i8"),  # the turn of a ring in which it was chosen, or not, ...
    ("goes", "i8"),  # ... to go on on another core
    # Of threads in lockstep, see `blocks`:
    ("frame", "i8"),  # their values, from one piece of code to the next; first their codes
    ("stop", "i8"),  # the code at which those that run alone stop; -1: at barriers only
    ("barrier", "i8"),  # whether there is one
    ("moving", "i8"),  # how many run alone, each as a fiber of its own
    ("parked", FIBER),  # stands for those that have a barrier before them
    ("all", GROUP),
    ("warps", WARP, MAX_WARPS),
)

POOL = struct(
    # Stacks, kept from launch to launch.
    ("free", "i8"),  # list of FIBER through next_free
    ("slot_bytes", "i8"),
    ("made", "i8"),
)

LAUNCH = struct(
    # One running kernel, or what one core runs of it: then `root` is the launch as a whole, whose
    # THREADs name that one.
    ("root", "i8"),
    ("bdim", "i4", 3),
    ("gdim", "i4", 3),
    ("begin", "i4", 3),  # the part of the grid to run, in loops; fibers run all of it
    ("end", "i4", 3),
    ("part", "i8"),  # number of that part
    ("number", "i8"),  # an observer's own: of the launch, and where it keeps what it sees
    ("log", "i8"),
    ("places", "i8"),  # its memory, see `compiler/observer`
    ("local_bytes", "i8"),  # of a thread
    ("dynamic_shared", "i8"),
    ("shared_bytes", "i8"),  # static + dynamic
    ("shared", "i8"),  # the shared arrays of a kernel that never waits
    ("user", "i8"),
    ("pool", "i8"),
    ("args", "i8"),
    ("thread_main", "i8"),
    ("run", "i8"),
    ("end_thread", "i8"),
    ("trampoline", "i8"),
    # Of threads in lockstep: what one runs alone, and how such a fiber ends; what a block calls
    # whose threads fall apart; bytes of a block's frame; C strings, barriers' sites by code.
    ("lane_main", "i8"),
    ("end_lane", "i8"),
    ("fall_apart", "i8"),
    ("frame_bytes", "i8"),
    ("sites", "i8"),
    ("cancel", "i8"),  # set from outside: stop at the ring's next turn
    # C functions of a LAUNCH's address, but for one, 0: none; for an embedder:
    ("idle", "i8"),  # called in each turn of the ring in which no thread has moved
    ("leave", "i8"),  # called when the grid has ended, before its memory is given back
    ("block_ended", "i8"),  # called with the FIBER that ends last of a block, see BLOCK.began
    # The embedder's own: where that keeps what it sees, the number of what began, and the name.
    ("kept", "i8"),
    ("event", "i8"),
    ("label", "i8"),
    ("stepped", "i8"),  # the embedder's own
    ("seed", "i8"),  # of the order in which blocks and threads start; 0: their own order
    ("max_resident", "i8"),
    # scheduler, of each core
    ("ring", FIBER),
    ("resident", "i8"),  # blocks in the ring
    ("progress", "i8"),  # counts every wait entered and every thread ended
    ("polls", "i8"),  # counts every `poll`
    ("turns", "i8"),  # counts the turns of the ring
    ("rests", "i8"),  # ... of these, those after which no thread in lockstep will be let go
    ("idle_since", "i8"),  # monotonic nanoseconds; 0 while threads make progress
    ("crowded", "i8"),  # whether others use this core, see `load_balancing`
    ("given", "i8"),  # list of FIBER through next: blocks that others have given; the root's lock
    ("n_given", "i8"),  # how many
    ("apart", "i8", 8),  # what all cores look at is on other cache lines
    # ... of the root
    ("several", "i8"),  # whether other cores may run blocks of it
    ("lock", "i8"),  # of what follows
    ("open", "i8"),  # whether another core may join
    ("joined", "i8"),  # other cores that run blocks of it now
    ("helped", "i8"),  # how many there have been at a time
    ("wants", "i8"),  # LAUNCH of a core that has no block; 0: none
    ("total", "i8"),  # blocks that are resident
    ("next_block", "i8"),
    ("free_blocks", "i8"),
    ("made_blocks", "i8"),
    ("everyone", GROUP),  # all threads of the grid, also those not yet started
    ("timed", "i8"),  # threads that are in a wait with a timeout: these move by themselves
    # print
    ("text", "i8"),  # what has been printed and not yet been given to Python
    ("text_bytes", "i8"),
    ("va_list", "i8", 3),
    ("flush", "i8"),  # C function: give it to Python
    # the first failure
    ("failed", "i8"),  # 0: none; 1: an exception; else the trap's code
    ("exception", "i8"),  # its status code: see `target.exceptions`
    ("site", "i8"),
    ("failed_tid", "i4", 3),
    ("failed_bid", "i4", 3),
    ("values", "i8", 8),
    # what `run/queue` needs to run it
    ("entry", "i8"),  # the C function of a LAUNCH's address that runs the grid, or a part of it
    ("slot_bytes", "i8"),  # of the pool that fibers need; 0: a kernel without fibers
    ("axis", "i8"),  # of the grid, along which it is divided among cores
    ("alone", "i8"),  # blocks along the axis that run first, to see how long they take
    ("name", "i8", 15),  # of the kernel, or the beginning of it
)
