"""Collectives inside jax.jit: `python bench/jax_collectives.py`, in an environment with JAX.

2 and 4 processes of `jax.distributed`, which are PEs: `gpushmem.integrations.jax` against JAX's own
collectives, which are Gloo's on CPUs. One call in a jitted function, or 8, each of the result of
the one before; the time is that of one call. Both take turns, in series; the best series counts.

Then a ring all-gather, written twice, alike: as a kernel of gpushmem on 2 and 4 PEs, and as a
Pallas kernel for TPUs on as many devices of one process, by JAX's interpreter for them
(`pltpu.InterpretParams`). The programs take turns, the best series counts.
"""

import json
import os
import socket
import subprocess
import sys
import time
from importlib.metadata import version

import numpy as np
from harness import report, row

os.environ["JAX_PLATFORMS"] = "cpu"
SIZES = [8 << 4 * k for k in range(6)]  # bytes, to 8 MiB
SHORT, SERIES, LONGEST = 0.05, 5, 100  # seconds of a series, how many, and calls in one at most
CHAIN = 8
ROWS, LANES = (8, 128, 2048), 128  # what each sends in a ring, float32
GPUSHMEM, TURNS = [sys.executable, "-m", "gpushmem"], 3


def timed(call, repeats):
    """Seconds of a call, the mean of a series."""
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def repeats_for(seconds):
    return min(LONGEST, max(2, int(SHORT / seconds)))


# --- beside JAX's own collectives


def chained(collective, times):
    """Calls one after the other; the result of each is as large as what it gets."""

    def function(x):
        for _ in range(times):
            x = collective(x) * 0.5
        return x

    return function


def pairs(n):
    """Name: ours, and JAX's along the axis "x"; of arrays (count,)."""
    import jax.numpy as jnp
    from jax import lax

    from gpushmem.integrations import jax as ours

    def rows(x):
        return x.reshape(n, -1)

    return {
        "all_reduce": (ours.all_reduce, lambda x: lax.psum(x, "x")),
        "all_gather": (
            lambda x: ours.all_gather(x)[-1],
            lambda x: lax.all_gather(x, "x")[-1],
        ),
        "reduce_scatter": (
            lambda x: jnp.tile(ours.reduce_scatter(rows(x)), n),
            lambda x: jnp.tile(lax.psum_scatter(rows(x), "x"), n),
        ),
        "all_to_all": (
            lambda x: ours.all_to_all(rows(x)).reshape(-1),
            lambda x: lax.all_to_all(rows(x), "x", 0, 0).reshape(-1),
        ),
    }


def rank_main(rank, n, port):
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", n, rank)

    import gpushmem as shmem
    from gpushmem.integrations import jax as ours

    ours.init()
    mesh, along = Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x")
    for name, functions in pairs(n).items():
        for nbytes in SIZES:
            local = np.arange(max(n, nbytes // 4), dtype=np.float32) + rank
            divided = jax.make_array_from_process_local_data(NamedSharding(mesh, along), local)
            for times in (1, CHAIN):
                own, theirs = (chained(each, times) for each in functions)
                mapped = jax.shard_map(
                    theirs, mesh=mesh, in_specs=along, out_specs=along, check_vma=False
                )
                ways = [
                    (jax.jit(own), jax.device_put(local)), (jax.jit(mapped), divided),
                ]  # fmt: skip
                calls = [lambda f=f, x=x: jax.block_until_ready(f(x)) for f, x in ways]
                found, wanted = calls[0](), calls[1]().addressable_shards[0].data
                assert np.allclose(found, wanted, rtol=1e-5)
                best = by_turns(calls)
                if rank == 0:
                    print(json.dumps([name, nbytes, times, *(s / times for s in best)]), flush=True)
    shmem.finalize()
    jax.distributed.shutdown()


def by_turns(calls):
    """Seconds of each call, the best of its series; all ranks make as many calls."""
    import gpushmem as shmem
    from gpushmem.integrations import jax as ours

    best = [float("inf")] * len(calls)
    for _ in range(SERIES):
        for k, call in enumerate(calls):
            once = float(ours.all_reduce(np.float32(timed(call, 1)), op="max"))
            shmem.barrier_all()
            best[k] = min(best[k], timed(call, repeats_for(once)))
    return best


def collectives(n):
    """What the first of n processes prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "rank", str(rank), str(n), str(port)],
            stdout=subprocess.PIPE if rank == 0 else None, text=True,
        )
        for rank in range(n)
    ]  # fmt: skip
    yield from read(started[0].stdout)
    assert not any(each.wait() for each in started)


def read(lines):
    """The lines that are results; Gloo prints others."""
    yield from (json.loads(line) for line in lines if not line.startswith("[Gloo]"))


# --- a ring


def ring_of_pes():
    """The kernel of gpushmem."""
    from gpushmem.kernels import wait_for

    import gpushmem as shmem

    @shmem.jit(collective=True)
    def ring(x, out, arrived, epoch):
        """`out` (n, size), `arrived` (n,): what the left one has goes on to the right one."""
        me, n = shmem.my_pe(), shmem.n_pes()
        shmem.barrier_all_block()
        shmem.copy_block(out[me], x)
        for step in range(n - 1):
            slot = (me - step) % n
            shmem.put_signal_block(
                out[slot], out[slot], arrived[step:], epoch, shmem.SIGNAL_SET, (me + 1) % n
            )
            wait_for(arrived[step:], epoch)

    with shmem.session() as world:
        n, epoch = world.n_pes, 0
        for rows in ROWS:
            size = rows * LANES
            x = shmem.to_device(np.arange(size, dtype=np.float32) + world.my_pe)
            out, arrived = shmem.zeros((n, size), "float32"), shmem.zeros(n, "uint64")

            def call(x=x, out=out, arrived=arrived):
                nonlocal epoch
                epoch += 1
                ring[1, 128](x, out, arrived, epoch)
                shmem.synchronize()

            call()
            assert (out.numpy() == np.arange(size) + np.arange(n)[:, None]).all()
            shmem.barrier_all()
            seconds = min(timed(call, LONGEST) for _ in range(SERIES))
            if world.my_pe == 0:
                print(json.dumps([rows, seconds]), flush=True)


def ring_of_devices(n):
    """The same as a Pallas kernel."""
    import jax
    from jax import lax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from jax.sharding import PartitionSpec

    os.environ["NPROC"] = str(4 * n)  # threads: with 2, arrays above 16 KiB wait for ever
    jax.config.update("jax_num_cpu_devices", n)

    def ring(x, out, copied, sent, arrived):
        me = lax.axis_index("x")
        left, right = (me + n - 1) % n, (me + 1) % n
        ready = pltpu.get_barrier_semaphore()
        for each in (left, right):
            pl.semaphore_signal(ready, 1, device_id=(each,))
        pl.semaphore_wait(ready, 2)
        copy = pltpu.make_async_copy(x, out.at[me], copied)
        copy.start()
        copy.wait()
        for step in range(n - 1):
            slot = (me + n - step) % n
            send = pltpu.make_async_remote_copy(
                out.at[slot], out.at[slot], sent, arrived.at[step], device_id=(right,)
            )
            send.start()
            send.wait()

    mesh, along = jax.make_mesh((n,), ("x",)), PartitionSpec("x")
    for rows in ROWS:
        kernel = pl.pallas_call(
            ring,
            out_shape=jax.ShapeDtypeStruct((n, rows, LANES), np.float32),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2 + [pltpu.SemaphoreType.DMA((n,))],
            compiler_params=pltpu.CompilerParams(collective_id=0),
            interpret=pltpu.InterpretParams(),
        )
        function = jax.jit(
            jax.shard_map(kernel, mesh=mesh, in_specs=along, out_specs=along, check_vma=False)
        )
        values = np.arange(rows * LANES, dtype=np.float32).reshape(rows, LANES)
        every = np.concatenate([values + k for k in range(n)])
        x = jax.device_put(every, jax.NamedSharding(mesh, along))

        def call(function=function, x=x):
            return jax.block_until_ready(function(x))

        found = np.asarray(call()).reshape(n, n * rows, LANES)
        assert (found == every).all()
        repeats = repeats_for(timed(call, 1))
        seconds = min(timed(call, repeats) for _ in range(SERIES))
        print(json.dumps([rows, seconds]), flush=True)


def rings(n):
    """Seconds of both, by rows."""
    commands = (
        [*GPUSHMEM, "run", "-n", str(n), __file__, "pes"],
        [sys.executable, __file__, "devices", str(n)],
    )
    best = {}
    for _ in range(TURNS):
        for k, command in enumerate(commands):
            made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            for rows, seconds in read(made.stdout.splitlines()):
                best.setdefault(rows, [float("inf")] * 2)
                best[rows][k] = min(best[rows][k], seconds)
    return best


def all_rows():
    for n in (2, 4):
        for name, nbytes, times, own, theirs in collectives(n):
            what = f"{name}, {nbytes} B, {n} processes, {times} in a function"
            yield row(what, own, "Gloo in JAX", theirs, "speed >= 1", theirs / own)
    for n in (2, 4):
        for rows, (own, theirs) in rings(n).items():
            what = f"ring all-gather, {4 * rows * LANES} B from each, {n} PEs"
            yield row(what, own, "Pallas' interpreter", theirs, "speed >= 10", theirs / own)


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:] or ["all"]
    programs = {"rank": rank_main, "pes": ring_of_pes, "devices": ring_of_devices}
    if kind in programs:
        programs[kind](*map(int, numbers))
    else:
        report("jax", all_rows(), jax=version("jax"))
