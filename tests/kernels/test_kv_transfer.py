"""Pages of a KV cache from PEs that prefill to PEs that decode, against NumPy."""

import time

import numpy as np
import pytest
from gpushmem.kernels.kv_transfer import KVTransfer, TransferFailed, reference
from gpushmem.kernels.wire import WIRES

import gpushmem as shmem
from tests.pes import lateness, repeated, to_send, whole_warps

LAYERS, PAGES, PAGE_SIZE, DIM = 2, 7, 3, 16
MINE, THEIRS = [4, 1, 5], [0, 6, 2]
# By the number of PEs: who prefills, who decodes, and by how many each divides the heads.
WORLDS = {
    1: ((0,), (0,), 1, 1),
    2: ((1,), (0,), 1, 1),
    3: ((0, 1), (2,), 2, 1),
    5: ((0, 1), (2, 3, 4), 2, 3),
    8: ((0, 1, 6, 7), (2, 3, 4, 5), 2, 4),
}


def plan_for(n, *, kv_heads=6, dtype="float32", **options):
    prefill, decode, prefill_tp, decode_tp = WORLDS[n]
    return KVTransfer(**{
        "layers": LAYERS, "pages": PAGES, "page_size": PAGE_SIZE, "kv_heads": kv_heads,
        "head_dim": DIM, "dtype": dtype, "prefill": prefill, "decode": decode,
        "prefill_tp": prefill_tp, "decode_tp": decode_tp, "requests": 2, "blocks": 2,
        "threads": whole_warps(64), **options,
    })  # fmt: skip


def heads_of(plan, pe):
    first, last = plan._sides.of(pe)
    return first, last


def pages_of(plan, pe, layer, request):
    """What a prefill PE has in a layer, all of its pages: small integers that name the PE."""
    first, last = heads_of(plan, pe)
    shape = plan._sides.shape(last - first)
    values = np.arange(np.prod(shape)).reshape(shape) % 97
    return (values + 100 * pe + 7 * layer + 3 * request % 89).astype(plan.dtype)


def fill(plan, request):
    for layer in range(LAYERS):
        plan.cache[layer].copy_from(pages_of(plan, plan.my_pe, layer, request))


def wanted(plan, before, layer, request, source=0, mine=MINE, theirs=THEIRS):
    """What a decoding PE has in a layer, of which it had `before`."""
    sides = plan._sides
    pes = sides.prefill[source * sides.prefill_tp :][: sides.prefill_tp]
    after = before.copy()
    caches = {pe: pages_of(plan, pe, layer, request) for pe in reversed(pes)}
    where = {pe: heads_of(plan, pe) for pe in pes}
    reference(caches, where, mine, after, heads_of(plan, plan.my_pe), theirs, sides.apart)
    return after


def until_over(plan, request):
    shmem.synchronize()  # so that it is asked for seldom: the checker looks at all answers
    while not plan.finished(request):
        time.sleep(0.01)


def check_arrived(plan, request, before, wire, **how):
    if not wire:
        plan.wait(request)  # for all layers
    for layer in range(LAYERS):
        plan.wait(request, layer)
        got, after = plan.cache[layer].numpy(), wanted(plan, before[layer], layer, request, **how)
        if wire:
            assert (np.abs(got.astype(float) - after) <= np.abs(after.astype(float)) / 16).all()
            after = np.where(got != before[layer], got, after)  # pages of others are as they were
        np.testing.assert_array_equal(got, after, f"request {request}, layer {layer}")
        assert plan.arrived(request, layer)


CASES = (
    {}, {"apart": True, "dtype": "bfloat16"}, {"kv_heads": 2, "dtype": "float16"},
    {"kv_heads": 1}, {"kv_heads": 4, "dtype": "int32"}, {"wire": "float8_e4m3", "kv_heads": 3},
    {"wire": "float8_e4m3", "dtype": "bfloat16"},
)  # fmt: skip


def every_case(cases):
    shmem.init()
    me, n = shmem.my_pe(), shmem.n_pes()
    for case in cases:
        plan, wire = plan_for(n, **case), case.get("wire")
        sides = plan._sides
        source, to = len(sides.prefill) // sides.prefill_tp - 1, 0
        for request in range(3):
            before = [np.full(x.shape, -1, x.dtype) for x in plan.cache]
            if me in sides.prefill:
                fill(plan, request)
                before = [x.numpy() for x in plan.cache]
            elif me in sides.decode:
                for x in plan.cache:
                    x.copy_from(-1)
            if plan._in[source]:
                plan.receive(request, THEIRS, source=source)
            if plan._out[to] and me in sides.prefill[source * sides.prefill_tp :]:
                plan.start(request, MINE, to=to)
                for layer in range(LAYERS):
                    if request == 1:  # as a prefill in chunks does
                        plan.send(request, layer, last=1)
                        plan.send(request, layer, first=1, last=2)
                        plan.send(request, layer, first=2)
                    elif request == 2:
                        own = to_send(pages_of(plan, me, layer, request))
                        plan.send(request, layer, cache=own)
                    elif layer == 0:  # all of them
                        plan.send(request)
                until_over(plan, request)
            if plan._in[source] and me in sides.decode[: sides.decode_tp]:
                check_arrived(plan, request, before, wire, source=source)
                until_over(plan, request)
        plan.free()
    shmem.finalize()


@pytest.mark.parametrize(
    ("n_pes", "cases"),
    [
        (3, CASES[:1]),
        *(pytest.param(n, CASES, marks=pytest.mark.sweep) for n in WORLDS),
    ],
)
def test_pages_arrive_and_others_stay(run_pes, n_pes, cases):
    run_pes(every_case, n_pes, cases)


@pytest.mark.sweep
def test_what_arrives_as_8_bits_is_what_the_wire_says(run_pes):
    def body():
        shmem.init()
        plan = plan_for(2, kv_heads=1, wire="float8_e4m3")
        rng = np.random.default_rng(0)
        values = rng.normal(size=plan.cache[0].shape).astype("float32")
        if shmem.my_pe() == 1:
            plan.cache[0].copy_from(values)
            plan.start(0, MINE)
            for layer in range(LAYERS):
                plan.send(0, layer)
        else:
            plan.receive(0, THEIRS)
            plan.wait(0, 0)
            got = plan.cache[0].numpy()
            for mine, its in zip(MINE, THEIRS, strict=True):
                want = WIRES["float8_e4m3"].through(values[mine].ravel())  # a page is a row
                np.testing.assert_array_equal(got[its].ravel(), want)
        until_over(plan, 0)
        shmem.finalize()

    run_pes(body, 2)


def many_requests(calls):
    """Two prefill instances send to one decoding PE, in turn, with three requests under way."""
    shmem.init()
    me = shmem.my_pe()
    plan = plan_for(2, kv_heads=2, prefill=(0, 1), decode=(2,), requests=3)
    rng, late = np.random.default_rng(1), lateness(0.05, 0.01)
    table = [(rng.permutation(PAGES)[:2].tolist(), 2 * (r % 3)) for r in range(calls)]
    for request, (mine, its) in enumerate(table):
        late()
        if me == request % 2:
            fill(plan, request)
            plan.start(request, mine)
            for layer in range(LAYERS):
                plan.send(request, layer)
            until_over(plan, request)  # its pages are written for the next one
        if me == 2:
            plan.receive(request, [its, its + 1], source=request % 2)
            old = request - 2
            if old >= 0:
                take(plan, old, table)
    if me == 2:
        for old in (calls - 2, calls - 1):
            take(plan, old, table)
    shmem.finalize()


def take(plan, request, table):
    mine, its = table[request]
    for layer in range(LAYERS):
        plan.wait(request, layer)
        got = plan.cache[layer][its : its + 2].numpy()  # others are being written
        want = pages_of(plan, request % 2, layer, request)[mine]
        np.testing.assert_array_equal(got, want, f"request {request}, layer {layer}")
    until_over(plan, request)


@pytest.mark.parametrize("calls", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_many_requests_while_pes_are_held_up(run_pes, calls):
    run_pes(many_requests, 3, repeated(calls, if_checked=6))


def raises(plan, request, said):
    with pytest.raises(TransferFailed, match=said) as found:
        until_over(plan, request)
    assert found.value.request == request


def failures():
    """PE 0 sends to PEs 1 and 2: what goes wrong with one is nothing to the other."""
    shmem.init()
    me = shmem.my_pe()
    plan = plan_for(2, kv_heads=2, prefill=(0,), decode=(1, 2), requests=4, timeout=0.2)
    if me == 0:
        fill(plan, 0)

    def send(request, to, pages=MINE, layers=LAYERS):
        plan.start(request, pages, to=to)
        for layer in range(layers):
            plan.send(request, layer)

    def meet():  # what has been named is there: a busy machine may be slower than the timeout
        shmem.synchronize()
        shmem.barrier_all()

    if me == 1:
        plan.refuse(0)
    if me == 2:
        plan.receive(1, THEIRS)
        plan.receive(3, THEIRS)
    meet()
    if me == 0:
        send(0, to=0)
        send(1, to=1)
        send(2, to=0)  # nobody answers
        send(3, to=1)
        raises(plan, 0, "request 0: decoding PE 1 of the team has refused it")
        raises(plan, 2, r"decoding PEs \[1\] of the team have named no pages within 0.2 s")
        with pytest.raises(shmem.ArgumentError, match=r"request 6 has slot 2 .* request 2 has"):
            plan.start(6, MINE, to=0)
        until_over(plan, 1)
        until_over(plan, 3)
    elif me == 2:
        for request in (1, 3):
            until_over(plan, request)
        got = plan.cache[1].numpy()[THEIRS]
        np.testing.assert_array_equal(got, pages_of(plan, 0, 1, 0)[MINE])
    shmem.barrier_all()
    if me == 1:
        plan.receive(2, THEIRS)  # too late: it is told
        plan.receive(4, THEIRS)
        plan.receive(5, THEIRS)
    meet()
    if me == 0:
        send(4, to=0, layers=1)
        plan.abort(4)
        raises(plan, 4, "it was given up here")
        send(5, to=0, pages=MINE[:2])
        raises(plan, 5, "it has 2 pages here, and 3 on decoding PE 1 of the team")
    if me == 1:
        raises(plan, 2, "prefill PE 0 of the team has not sent it from layer 0 on")
        raises(plan, 4, "has not sent it from layer 1 on")
        raises(plan, 5, "another number of pages")
    meet()  # 9 has the slot of 5, of which nothing is known then
    if me == 1:
        plan.refuse(6)
        plan.receive(10, THEIRS)
        plan.receive(8, THEIRS)
        plan.abort(8)
        plan.receive(9, THEIRS)
    meet()
    if me == 0:
        send(6, to=0)
        raises(plan, 6, "PE 1 of the team, which has gone on to request 10, has refused it or has")
        send(10, to=0)
        until_over(plan, 10)
        send(8, to=0)
        send(9, to=0)
        raises(plan, 8, "decoding PE 1 of the team has given it up")
        until_over(plan, 9)
    if me == 1:
        until_over(plan, 10)
        raises(plan, 8, "it was given up here")
        until_over(plan, 9)
        np.testing.assert_array_equal(plan.cache[1].numpy()[THEIRS], pages_of(plan, 0, 1, 0)[MINE])
    shmem.finalize()


def test_who_refuses_gives_up_or_does_not_answer_is_named_and_others_go_on(run_pes):
    run_pes(failures, 3)


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph(run_pes):
    """What is captured is of a slot: it serves all requests that have it."""

    def body():
        shmem.init()
        me, stream = shmem.my_pe(), shmem.stream()
        plan, graph = plan_for(2), None
        for request in (0, 2, 4):
            if me == 1:
                fill(plan, request)
                plan.start(request, MINE, stream=stream)
                steps = lambda: [plan.send(request, k, stream=stream) for k in range(LAYERS)]  # noqa: B023, E731
            else:
                plan.receive(request, THEIRS, stream=stream)
                steps = lambda: [plan.wait(request, k, stream=stream) for k in range(LAYERS)]  # noqa: B023, E731
            if request == 0:
                steps()
            else:
                if graph is None:
                    with shmem.capture(stream) as graph:
                        steps()
                graph.launch(stream)
            until_over(plan, request)
            if me == 0:
                shmem.synchronize()
                got = plan.cache[1].numpy()[THEIRS]
                np.testing.assert_array_equal(got, pages_of(plan, 1, 1, request)[MINE])
            shmem.barrier_all()
        shmem.finalize()

    run_pes(body, 2)


def test_in_two_teams_and_counted(run_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        teams = [shmem.team_split_strided(shmem.TEAM_WORLD, k, 2, 2) for k in (0, 1)]
        plan = plan_for(2, team=teams[me % 2], pages=PAGES)
        if plan.my_pe == 1:
            fill(plan, me)
            plan.start(0, MINE)
            for layer in range(LAYERS):
                plan.send(0, layer)
            assert plan.sends(3) == (3 * 2 * PAGE_SIZE * 6 * DIM * 4, 3 + 2)
        else:
            plan.receive(0, THEIRS)
            plan.wait(0, 1)
            got = plan.cache[1].numpy()[THEIRS]
            np.testing.assert_array_equal(got, pages_of(plan, 1, 1, me + 2)[MINE])
            assert plan.sends() == (0, 0)
        until_over(plan, 0)
        shmem.finalize()
        return n

    run_pes(body, 4)


def test_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        for given, said in (
            ({"prefill": (0, 3)}, r"prefill is \(0, 3\); it must be different PEs of the team's 1"),
            ({"decode_tp": 2}, "decode has 1 PEs, which are no instances of 2"),
            ({"layers": 0}, "layers must be 1 to"),
            ({"wire": "int8"}, "wire is 'int8'"),
            ({"wire": "float8_e4m3", "dtype": "int32"}, "for int32 and heads of 16"),
        ):
            with pytest.raises(shmem.ArgumentError, match=said):
                plan_for(1, **given)
        plan = plan_for(1)
        for call, said in (
            (lambda: plan.start(0, [PAGES]), "pages are numbered 0 to 6; got 7 to 7"),
            (lambda: plan.start(-1, MINE), "request must be 0 to"),
            (lambda: plan.start(0, MINE, to=1), "to must be 0 to 0"),
            (lambda: plan.receive(0, []), "pages of a request must be 1 to 7"),
            (lambda: plan.send(3, 0), "request 3 is not under way here: call `start` first"),
            (lambda: plan.wait(3, 0), "request 3 is not under way here: call `receive` first"),
        ):
            with pytest.raises(shmem.ArgumentError, match=said):
                call()
        plan.receive(0, THEIRS)
        with pytest.raises(shmem.ArgumentError, match="request 2 has slot 0 of 2, which request 0"):
            plan.receive(2, THEIRS)
        plan.start(0, MINE)
        with pytest.raises(shmem.ArgumentError, match="layer must be 0 to 1"):
            plan.send(0, 2)
        with pytest.raises(shmem.ArgumentError, match="cache has shape"):
            plan.send(0, 0, cache=shmem.device_array((2, 2, 3, 1, DIM), "float32"))
        shmem.finalize()

    run_pes(body, 1)
