"""Attention to keys that are cut among PEs, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels.flash_decode import FlashDecode, reference

import gpushmem as shmem
from tests.pes import lateness, repeated, some_of, to_send, whole_warps

PAGES, PAGE_SIZE = 40, 8
SIZES = {"batch": 3, "queries": 2, "heads": 6, "kv_heads": 3, "head_dim": 16, "pages": PAGES,
         "page_size": PAGE_SIZE, "most_pages": 24}  # fmt: skip
LAUNCHES = ((1, 64, None), (2, 64, 2), (3, 32, 1))
CASES = [
    {}, {"apart": True, "split_heads": True}, {"queries": 1, "heads": 3},
    {"kv_heads": 1, "batch": 1},
    {"split_heads": True, "kv_heads": 2, "head_dim": 20}, {"most_pages": 1, "scale": 0.5},
]  # fmt: skip
BY_LANES = [  # with 2 to 32 lanes for a key, 1 to 8 rows at a time
    {"kv_heads": 1, "batch": 1}, {"apart": True, "split_heads": True, "queries": 3},
    {"head_dim": 64, "scale": 0.5}, {"head_dim": 128, "heads": 3, "queries": 1},
]  # fmt: skip
BY_LANES = [{"method": "lanes", **case} for case in BY_LANES]
OFF = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


class Job:
    """What all PEs have, the same on each of them by its seed."""

    def __init__(self, seed, n, sizes, dtype):
        rng = np.random.default_rng(seed)
        self.sizes, batch, most = sizes, sizes["batch"], sizes["most_pages"]
        heads, kv, dim, queries = (sizes[k] for k in ("heads", "kv_heads", "head_dim", "queries"))
        self.q = rng.normal(size=(batch, queries, heads, dim)).astype(dtype)
        self.cache = rng.normal(size=(n, PAGES, 2, PAGE_SIZE, kv, dim)).astype(dtype)
        self.tables = np.array(
            [[rng.permutation(PAGES)[:most] for _ in range(batch)] for _ in range(n)], "int32"
        )
        counts = rng.integers(0, most * PAGE_SIZE + 1, size=(n, batch))
        counts[:, -1] = 0 if batch > 1 else counts[:, -1]  # a sequence without any key
        counts[0, 0] = 0
        behind = np.arange(queries)[::-1]  # the last PE has the new tokens
        self.lengths = np.repeat(counts[..., None], queries, 2).astype("int32")
        self.lengths[-1] = np.maximum(self.lengths[-1] - behind, 0)

    def wanted(self):
        made = []
        for b in range(len(self.q)):
            pages = [self.cache[p][table[b]] for p, table in enumerate(self.tables)]
            keys, values = (
                np.concatenate([x[:, k].reshape(-1, *x.shape[3:]) for x in pages]) for k in (0, 1)
            )
            each = np.arange(self.sizes["most_pages"] * PAGE_SIZE)
            seen = np.concatenate([each < of[b][:, None] for of in self.lengths], axis=1)
            made.append(reference(self.q[b], keys, values, seen, self.sizes.get("scale")))
        return np.array(made)


def called(plan, job, me, out):
    cache = job.cache[me]
    cache = cache.swapaxes(0, 1) if plan.apart else cache
    given = job.q, np.ascontiguousarray(cache), job.tables[me], job.lengths[me]
    plan(*map(to_send, given), out=out)
    return out.numpy().astype(float)


def every_case(cases, dtypes):
    shmem.init()
    me, n = shmem.my_pe(), shmem.n_pes()
    for number, (case, dtype) in enumerate(some_of([(c, d) for c in cases for d in dtypes])):
        blocks, threads, splits = LAUNCHES[number % 3]
        sizes = SIZES | case
        with FlashDecode(
            **sizes, dtype=dtype, blocks=blocks, threads=whole_warps(threads), splits=splits
        ) as plan:
            out = shmem.device_array(
                (*(sizes[k] for k in ("batch", "queries")), plan.local_heads, sizes["head_dim"]),
                dtype,
            )
            for call in range(3):
                job = Job(10 * number + call, n, sizes, dtype)
                got, want = called(plan, job, me, out), job.wanted()
                want = want[:, :, plan.first_head : plan.first_head + plan.local_heads]
                np.testing.assert_allclose(got, want, atol=OFF[dtype], rtol=0, err_msg=str(case))
                if sizes["batch"] > 1:
                    assert not got[-1].any()
    shmem.finalize()


@pytest.mark.parametrize(
    ("n_pes", "cases", "dtypes"),
    [
        (3, CASES[:2], ("float32",)),
        (2, BY_LANES[:1], ("float16",)),
        *(
            pytest.param(n, CASES + BY_LANES, tuple(OFF), marks=pytest.mark.sweep)
            for n in (1, 2, 3, 5, 8)
        ),
    ],
)
def test_attention_is_numpys(run_pes, n_pes, cases, dtypes):
    run_pes(every_case, n_pes, cases, dtypes, timeout=120)


FEW = {"batch": 1, "queries": 1, "heads": 2, "kv_heads": 1, "most_pages": 2, "pages": PAGES}


def many_calls(calls):
    shmem.init()
    me, n, late = shmem.my_pe(), shmem.n_pes(), lateness(0.03, 0.005)
    jobs = [Job(k, n, SIZES | FEW, "float32") for k in range(7)]
    wanted = [job.wanted() for job in jobs]
    given = [
        [to_send(x) for x in (job.q, job.cache[me], job.tables[me], job.lengths[me])]
        for job in jobs
    ]
    out = shmem.device_array(jobs[0].q.shape, "float32")
    with FlashDecode(**SIZES | FEW, dtype="float32", blocks=2, threads=whole_warps(32)) as plan:
        for call in range(calls):
            late()
            plan(*given[call % 7], out=out)
            if call % 5 == 0 or call == calls - 1:
                np.testing.assert_allclose(out.numpy(), wanted[call % 7], atol=1e-5)
    shmem.finalize()


@pytest.mark.parametrize("calls", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_calls_without_a_barrier(run_pes, calls):
    run_pes(many_calls, 3, repeated(calls, if_checked=5))


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph_of_two_teams_and_counted(run_pes):
    """Lengths are on the device: a graph sees those of each launch."""

    def body():
        shmem.init()
        me = shmem.my_pe()
        teams = [shmem.team_split_strided(shmem.TEAM_WORLD, k, 2, 2) for k in (0, 1)]
        job, stream = Job(me % 2, 2, SIZES | FEW, "float32"), shmem.stream()
        launch = {"blocks": 2, "threads": whole_warps(32)}
        plan = FlashDecode(**SIZES | FEW, dtype="float32", team=teams[me % 2], **launch)
        cache, table = job.cache[me // 2], job.tables[me // 2]
        given = [to_send(x) for x in (job.q, cache, table, job.lengths[me // 2])]
        out = shmem.device_array(job.q.shape, "float32")
        plan(*given, out=out, stream=stream)
        with shmem.capture(stream) as graph:
            plan(*given, out=out, stream=stream)
        for seen in (3, 0, 16):
            job.lengths[:] = seen
            given[3].copy_from(job.lengths[0])
            graph.launch(stream)
            np.testing.assert_allclose(out.numpy(), job.wanted(), atol=1e-5)
        assert plan.sends() == (4 * 2 * 20, 1 + 2)
        shmem.finalize()

    run_pes(body, 4)


def test_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        for given, said in (
            ({"heads": 5}, "5 heads cannot share 3 evenly"),
            ({"dtype": "float64"}, "dtype is float64"),
            ({"queries": 0}, "queries must be 1 to"),
            ({"method": "lanes", "head_dim": 24}, "method is 'lanes', with heads of 24 and"),
            ({"method": "lanes", "threads": 48}, "method is 'lanes', with heads of 16 and 48"),
            ({"method": "rows"}, "it can be 'tiles', or 'lanes' for heads of 32 to 512 bytes"),
        ):
            with pytest.raises(shmem.ArgumentError, match=said):
                FlashDecode(**SIZES | {"dtype": "float32"} | given)
        with FlashDecode(**SIZES, dtype="float32") as plan:
            job = Job(0, 1, SIZES, "float32")
            given = [to_send(x) for x in (job.q, job.cache[0], job.tables[0], job.lengths[0])]
            for k, said in enumerate(("q", "cache", "tables", "lengths", "out")):
                arrays = [*given, to_send(job.q)]
                arrays[k] = shmem.device_array(3, "float32")
                with pytest.raises(shmem.ArgumentError, match=f"{said} has shape"):
                    plan(*arrays[:4], out=arrays[4])
        shmem.finalize()

    run_pes(body, 1)
