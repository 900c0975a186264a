"""The process group of the backend "gpushmem" for `torch.distributed`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, partial
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from gpushmem import runtime
from gpushmem.backends.cpu.sync.messages import ANY, Letter
from gpushmem.errors import ArgumentError, NotInitializedError, ShmemError
from gpushmem.job.forks import belongs
from gpushmem.memory.validation import dtype_of
from gpushmem.ops.team import Team
from gpushmem.ops.teams import team_init
from gpushmem.torch import flight_recorder
from gpushmem.torch.async_work import Call, Queue, Together, Work, failure
from gpushmem.torch.call_forms import CallError, all_forms, flat, naming, only, root_of
from gpushmem.torch.direct import Direct, Turn
from gpushmem.torch.messages import Messages
from gpushmem.torch.profiles import profiling, recorded
from gpushmem.torch.reductions import OF_TRUTH, Reduction, divide, reduction_of

if TYPE_CHECKING:
    from gpushmem.torch.checking import Flight, InFlight

__all__ = ["ProcessGroup"]


UNSET = timedelta(0)  # options without a timeout have a negative one
NAME = "gpushmem"
Run = Callable[[float], None]
allow_inflight = torch._C._distributed_c10d._allow_inflight_collective_as_graph_input


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group of PEs.

    Collectives take tensors in host memory, of all dtypes that symmetric arrays have. Each is done
    when its call returns, unless PyTorch asks for an asynchronous one: those are done by a thread
    of the group, in the order of the calls. Errors are `torch.distributed.DistBackendError`.
    """

    def __init__(self, pes: Sequence[int], timeout: timedelta) -> None:
        here = runtime.current("init_process_group")
        self._backend = here.backend
        self._team: Team = team_init(list(pes))
        self._collectives = self._backend.host_collectives(self._team)
        self._me, self._n = self._collectives.my_pe, self._collectives.n_pes
        super().__init__(self._me, self._n)
        self._timeout = timeout.total_seconds()
        self._queue = belongs(Queue(f"gpushmem-torch-{int(self._team)}"))
        self._none = [0] * (2 * self._n)
        self._rest = [0] * (self._n - 1)
        self._failed: BaseException | None = None
        self._turn = Turn()
        self._number = 0  # calls made
        self._done = Work("a call", []).end()  # of all calls for which PyTorch waits at once
        self._together: list[Work] | None = None  # those of a block of coalesced calls
        self._names = flight_recorder.Name(name="", desc="undefined")
        self._record = flight_recorder.current()
        if self._record is not None:
            self._record.add_group(self._names, pes)
        name = f"gpushmem-torch-p2p-{int(self._team)}"
        self._messages = belongs(Messages(self._backend.mailbox(self._team), name, self._timeout))
        self._checked: InFlight | None = None
        if self._backend.recorder is not None:
            from gpushmem.torch.checking import in_flight  # noqa: PLC0415  (for those who check)

            self._checked = in_flight(self._backend.recorder)
        self._pes, self._stream = list(pes), -2 - int(self._team)
        here.at_end.append(partial(_finalize, weakref.ref(self)))

    # --- making calls

    def _make(
        self, what: str, opts: Any, run: Run, inputs: list[Any], outputs: list[Any],
        writes: bool = True,
    ) -> Any:  # fmt: skip
        """Make a call; in a profile of PyTorch's it is `gpushmem:` and its name.

        `writes`: whether it writes the outputs here.
        """
        self._number += 1
        if self._record is not None:
            run = self._record.around(run, self._names, self._number, what, (inputs, outputs))
        if not profiling():
            return self._made(what, opts, run, inputs, outputs, writes)
        with recorded(what, inputs):
            return self._made(what, opts, run, inputs, outputs, writes)

    def _made(
        self, what: str, opts: Any, run: Run, inputs: list[Any], result: list[Any], writes: bool
    ) -> Any:
        """Make a call now, or let the group's thread do it; `run` gets how long it may wait."""
        seconds = self._timeout
        if opts is not None and opts.timeout > UNSET:
            seconds = opts.timeout.total_seconds()
        # Whoever gives no options wants a `Work` with a result, as PyTorch's options have it.
        asynchronous = opts is None or getattr(opts, "asyncOp", False)
        if self._together is None and not asynchronous and self._queue.idle:
            if self._checked is not None:
                self._checked.recorder.waited_for(self._stream)  # all calls are made in order
                self._checked.used(flat(inputs), flat(result) if writes else [])
            self._guarded(what, run, seconds)
            return self._done
        result = flat(result)
        work = Call(what, lambda: self._guarded(what, run, seconds), result)
        if self._checked is not None:
            work.flight = self._checked.begin(what, inputs, result if writes else [], self._stream)
        self._turn.close()
        self._queue.put(work)
        if asynchronous and allow_inflight():  # `wait_tensor` of compiled graphs waits, too
            for tensor in result:
                torch._C._distributed_c10d._register_work(tensor, work)
        if self._together is not None:
            self._together.append(work)
        elif not asynchronous:
            work.wait()
        return work

    def _guarded(self, what: str, run: Run, seconds: float) -> None:
        if self._failed is not None:
            ended = isinstance(self._failed, NotInitializedError)
            why = "this group has ended" if ended else "an earlier call has failed"
            raise dist.DistBackendError(f"{what}: {why}: {self._failed}")
        try:
            with self._turn, naming(what):
                run(seconds)
        except CallError:
            raise  # before anything was sent
        except ShmemError as error:
            raise self._lost(what, error) from error

    def _lost(self, what: str, error: ShmemError) -> Exception:
        """The error of a call; all later ones fail, too."""
        self._failed = error
        self._turn.close()
        if self._record is not None:
            self._record.failed()
        return failure(what, error)

    # --- calls that the operator `all_reduce_` makes

    def direct(self) -> Direct:
        """What the operator needs."""
        if self._turn.direct is None:
            self._turn.direct = Direct(self, self._collectives)
        return self._turn.direct

    @property
    def is_plain(self) -> bool:
        """Whether the operator can make the next call: nobody has to hear of it, or is before."""
        told = self._record or self._checked or self._collectives.seen
        return not (told or self._failed or self._together is not None) and self._queue.idle

    def end_direct(self) -> None:
        """End a call that the operator has begun."""
        try:
            with naming("all_reduce"):
                self._collectives.end("all_reduce", self._timeout)
        except ShmemError as error:
            raise self._lost("all_reduce", error) from error

    # --- collectives of one tensor to or from each member

    @all_forms(1, c10d.AllreduceOptions, "op")
    def allreduce(self, tensors: list[Tensor], opts: Any) -> Any:
        return self.allreduce_coalesced([only("all_reduce", tensors)], opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        reduction = reduction_of("all_reduce", opts, tensors, self._n)

        def run(seconds: float) -> None:
            for tensor in tensors:
                if tensor.is_sparse:
                    self._add_sparse(tensor, reduction, seconds)
                    continue
                with_all = _Filled(tensor, times=reduction.factor)
                self._combine("all_reduce", with_all, reduction.op, seconds)
                with_all.done(reduction.divisor)

        return self._make("all_reduce", opts, run, tensors, tensors)

    def _add_sparse(self, tensor: Tensor, reduction: Reduction, seconds: float) -> None:
        """Replace a sparse tensor by the sum of all, as gradients of embeddings are added up."""
        if reduction.op != "sum":
            raise ArgumentError(f"of sparse tensors there is the sum alone, not {reduction.op}")
        mine = tensor.detach().coalesce()
        mine = mine if reduction.factor is None else mine * reduction.factor
        counts = torch.empty(self._n, dtype=torch.int64)
        here = _Filled(torch.tensor([mine._nnz()]))
        self._gather("all_gather", _Filled(counts).parts(self._n), here, seconds)
        indices = [torch.empty(mine.sparse_dim(), k, dtype=torch.int64) for k in counts.tolist()]
        values = [mine.values().new_empty(k, *mine.values().shape[1:]) for k in counts.tolist()]
        for parts, source in ((indices, mine.indices()), (values, mine.values())):
            self._gather("all_gather", [*map(_Filled, parts)], _Filled(source), seconds)
        total = torch.cat(values)
        total = total / reduction.divisor if reduction.divisor else total
        added = torch.sparse_coo_tensor(
            torch.cat(indices, 1), total, tensor.shape, check_invariants=False
        )
        with torch.no_grad():  # `detach` would have other indices
            tensor.copy_(added.coalesce())

    def _combine(
        self, what: str, memory: _Filled, op: str, seconds: float, root: int | None = None
    ) -> None:
        """Combine the members' tensors; the result is for all, or for `root`."""
        at, nbytes = memory.address, memory.nbytes
        mine = [at, *self._rest, nbytes, *self._rest]
        takes = mine if root in (None, self._me) else self._none
        self._collectives.call(
            what, memory.dtype, mine, takes, True, nbytes, root or 0, memory.combined(op), seconds
        )

    @all_forms(1, c10d.ReduceOptions, "root", "op")
    def reduce(self, tensors: list[Tensor], opts: Any) -> Any:
        tensor = only("reduce", tensors)
        reduction = reduction_of("reduce", opts, tensors, self._n)
        root = root_of("reduce", opts, self._n)

        def run(seconds: float) -> None:
            memory = _Filled(tensor, times=reduction.factor)
            self._combine("reduce_to", memory, reduction.op, seconds, root)
            if root == self._me:
                memory.done(reduction.divisor)

        return self._make("reduce", opts, run, tensors, tensors, writes=root == self._me)

    @all_forms(1, c10d.BroadcastOptions, "root")
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        tensor = only("broadcast", tensors)
        root = root_of("broadcast", opts, self._n)

        def run(seconds: float) -> None:
            memory = _Filled(tensor)
            at, nbytes = memory.address, memory.nbytes
            sends = takes = self._none
            if root == self._me:
                sends = [at, *self._rest, nbytes, *self._rest]
            else:
                takes = self._only(root, at, nbytes)
            self._collectives.call(
                "broadcast", memory.dtype, sends, takes, True, nbytes, root, seconds=seconds
            )
            if root != self._me:
                memory.done()

        return self._make("broadcast", opts, run, tensors, tensors, writes=root != self._me)

    def _only(self, rank: int, address: int, nbytes: int) -> list[int]:
        places = [0] * (2 * self._n)
        places[rank], places[self._n + rank] = address, nbytes
        return places

    @all_forms(0, c10d.BarrierOptions)
    def barrier(self, opts: Any) -> Any:
        def run(seconds: float) -> None:
            none, dtype = self._none, np.dtype(np.uint8)
            self._collectives.call("barrier", dtype, none, none, True, 0, seconds=seconds)

        return self._make("barrier", opts, run, [], [])

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier; if not all come, all that are missing are named, on each rank."""
        opts = dist.BarrierOptions()
        opts.asyncOp = False
        opts.timeout = timeout or timedelta(seconds=self._timeout)
        self.barrier(opts)

    def _mine(self, parts: list[_Filled]) -> _Filled:
        """Return the part of this member; there is one for each."""
        if len(parts) != self._n:
            name = parts[0].name.partition("[")[0] if parts else "the list"
            raise ArgumentError(f"{name} has {len(parts)} tensors for {self._n} ranks")
        return parts[self._me]

    def _check(self, parts: list[_Filled], whole: _Filled) -> None:
        """One part for each member, of the dtype of `whole`, which is as large as this member's."""
        mine = self._mine(parts)
        for part in parts:
            if part.dtype != whole.dtype:
                raise ArgumentError(
                    f"{part.name} is of {part.dtype}, and {whole.name} of {whole.dtype}"
                )
        if mine.nbytes != whole.nbytes:
            raise ArgumentError(
                f"{whole.name} has {whole.nbytes} bytes, and this rank's part of {mine.name} "
                f"{mine.nbytes}"
            )

    # --- to all, from all

    def _gather(
        self, what: str, outputs: list[_Filled], source: _Filled, seconds: float, root: int = -1
    ) -> None:
        """All members' sources, into this one's outputs, if it has any."""
        if outputs:
            self._check(outputs, source)
        sends = [source.address, *self._rest, source.nbytes, *self._rest]
        takes = _places(outputs) if outputs else self._none
        alike = source.nbytes if all(o.nbytes == source.nbytes for o in outputs) else 0
        self._collectives.call(
            what, source.dtype, sends, takes, True, alike, max(root, 0), seconds=seconds
        )
        for output in outputs:
            output.done()

    @all_forms(2, c10d.AllgatherOptions)
    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> Any:
        outputs, source = only("all_gather", output_tensors), only("all_gather", input_tensors)
        return self._all_gathers([outputs], [source], opts)

    def _all_gathers(self, lists: list[list[Tensor]], sources: list[Tensor], opts: Any) -> Any:
        def run(seconds: float) -> None:
            for outputs, source in zip(lists, sources, strict=True):
                self._gather("all_gather", _all(outputs, "tensor_list"), _Filled(source), seconds)

        return self._make("all_gather", opts, run, sources, lists)

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], input_tensors: list[Tensor], opts: Any = None
    ) -> Any:
        """Several at once: `output_lists` has a list of tensors for each member."""
        lists = [list(each) for each in zip(*output_lists, strict=True)]
        if len(lists) != len(input_tensors):
            raise CallError(
                f"all_gather_coalesced: {len(input_tensors)} tensors are sent, and each list has "
                f"{len(lists)} for them"
            )
        return self._all_gathers(lists, input_tensors, opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        def run(seconds: float) -> None:
            for output, source in zip(outputs, inputs, strict=True):
                memory, mine = _Filled(output, "output"), _Filled(source, "input")
                self._gather("all_gather", memory.parts(self._n), mine, seconds)
                memory.done()

        return self._make("all_gather_into_tensor", opts, run, inputs, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [source], opts)

    _allgather_base = all_gather_single

    @all_forms(2, c10d.GatherOptions, "root")
    def gather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> Any:
        source, root = only("gather", input_tensors), root_of("gather", opts, self._n)
        outputs = only("gather", output_tensors) if root == self._me else []

        def run(seconds: float) -> None:
            there = _all(outputs, "gather_list")
            self._gather("gather", there, _Filled(source), seconds, root)

        return self._make("gather", opts, run, input_tensors, output_tensors)

    @all_forms(2, c10d.ScatterOptions, "root")
    def scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> Any:
        output, root = only("scatter", output_tensors), root_of("scatter", opts, self._n)
        inputs = only("scatter", input_tensors) if root == self._me else []

        def run(seconds: float) -> None:
            memory, sources = _Filled(output), _all(inputs, "scatter_list")
            if root == self._me:
                self._check(sources, memory)
            sends = _places(sources) if sources else self._none
            takes = self._only(root, memory.address, memory.nbytes)
            self._collectives.call(
                "scatter", memory.dtype, sends, takes, False, memory.nbytes, root, seconds=seconds
            )
            memory.done()

        return self._make("scatter", opts, run, input_tensors, output_tensors)

    def _scatter_sum(
        self, output: _Filled, sources: list[_Filled], op: str, seconds: float
    ) -> None:
        self._check(sources, output)
        takes = [output.address, *self._rest, output.nbytes, *self._rest]
        self._collectives.call(
            "reduce_scatter", output.dtype, _places(sources), takes, False, output.nbytes,
            op=output.combined(op), seconds=seconds,
        )  # fmt: skip

    @all_forms(2, c10d.ReduceScatterOptions, "op")
    def reduce_scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> Any:
        reduction = reduction_of("reduce_scatter", opts, output_tensors, self._n)
        output = only("reduce_scatter", output_tensors)
        inputs = only("reduce_scatter", input_tensors)

        def run(seconds: float) -> None:
            memory = _Filled(output, "output")
            self._scatter_sum(
                memory, _all(inputs, "input_list", reduction.factor), reduction.op, seconds
            )
            memory.done(reduction.divisor)

        return self._make("reduce_scatter", opts, run, input_tensors, output_tensors)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        reduction = reduction_of("reduce_scatter_tensor", opts, outputs, self._n)

        def run(seconds: float) -> None:
            for output, source in zip(outputs, inputs, strict=True):
                memory = _Filled(output, "output")
                mine = _Filled(source, "input", reduction.factor)
                self._scatter_sum(memory, mine.parts(self._n), reduction.op, seconds)
                memory.done(reduction.divisor)

        return self._make("reduce_scatter_tensor", opts, run, inputs, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    # --- from each to each

    def _exchange(self, outputs: list[_Filled], inputs: list[_Filled], seconds: float) -> None:
        self._check(outputs, self._mine(inputs))
        self._collectives.call(
            "all_to_all",
            inputs[0].dtype,
            _places(inputs),
            _places(outputs),
            False,
            0,
            seconds=seconds,
        )

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        def run(seconds: float) -> None:
            there = _all(outputs, "output_tensor_list")
            self._exchange(there, _all(inputs, "input_tensor_list"), seconds)
            for output in there:
                output.done()

        return self._make("all_to_all", opts, run, [inputs], [outputs])

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Any:
        with naming("all_to_all_single"):  # now: an array may be changed before the call is made
            there_has = _numbers(output_splits, "output_split_sizes")
            here_has = _numbers(input_splits, "input_split_sizes")

        def run(seconds: float) -> None:
            there, here = _Filled(output, "output"), _Filled(source, "input")
            outputs = there.parts(self._n, there_has)
            self._exchange(outputs, here.parts(self._n, here_has), seconds)
            there.done()

        return self._make("all_to_all_single", opts, run, [source], [output])

    alltoall_base = all_to_all_single

    # --- from one to one

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> Any:
        memory = self._message("send", tensors)
        letter = Letter(rank, tag, memory.address, memory.nbytes, memory)
        flight = self._posted("send", tensors, [], letter)
        with recorded("send", tensors):
            return self._messages.post("send", letter, tensors, lambda: None, flight)

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> Any:
        memory = self._message("recv", tensors)
        letter = Letter(rank, tag, memory.address, memory.nbytes, memory)
        flight = self._posted("recv", [], tensors, letter)
        with recorded("recv" if rank != ANY else "recvAnySource", tensors):
            return self._messages.post("recv", letter, tensors, memory.done, flight)

    def _posted(
        self, what: str, reads: list[Tensor], writes: list[Tensor], letter: Letter
    ) -> Flight | None:
        """A letter as the checker sees it; whom it is from is known when it has come."""
        if self._checked is None:
            return None
        me, team = self._pes[self._me], int(self._team)
        if what == "send":
            self._checked.recorder.sends(me, self._pes[letter.rank], team, letter.tag)
        flight = self._checked.begin(what, reads, writes)
        if what == "recv":
            flight.receives = lambda: (self._pes[letter.rank], me, team, letter.tag)
        return flight

    def _message(self, what: str, tensors: list[Tensor]) -> _Filled:
        with naming(what):
            return _Filled(only(what, tensors))

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        return self.recv(tensors, ANY, tag)

    # --- about the group

    @property
    def team(self) -> Team:
        """The team of its ranks."""
        return self._team

    def getBackendName(self) -> str:  # noqa: N802  (PyTorch's name, as those below)
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        return self._names["name"]

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._names["name"] = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._names["desc"]

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        self._names["desc"] = text

    def name(self) -> str:
        return NAME

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    # what PyTorch asks of backends
    supports_splitting = supports_time_estimate = supports_coalescing = False

    def _get_sequence_number_for_group(self) -> int:
        return self._number + self._turn.made

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: members count their calls from 0."""

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout = self._messages.seconds = timeout.total_seconds()

    set_timeout = _set_default_timeout

    def _start_coalescing(self, device: torch.device) -> None:
        self._together = []
        self._turn.close()

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._together = self._together or [], None
        return Together(works)

    def shutdown(self) -> None:
        """End the group, once its calls have been made. For `destroy_process_group`."""
        if self._failed is None:
            self._queue.finish()
        self.abort()
        self._backend.forget_team(self._team)
        self._backend.handle_deadlock()

    def abort(self) -> None:
        """End the group's threads."""
        self._turn.forget()
        self._queue.close()
        self._messages.close()

    def __repr__(self) -> str:
        return f"<gpushmem process group of {self._n}, rank {self._me}>"


def _finalize(group: weakref.ref[ProcessGroup]) -> None:
    """The PEs are gone: the group makes no more calls."""
    there = group()
    if there is not None:
        there._failed = NotInitializedError("gpushmem.finalize() has ended its PEs")
        there._turn.forget()


class _Filled:
    """A tensor's memory for a call: its own, or that of a contiguous copy, as of one `times`."""

    def __init__(self, tensor: Tensor, name: str = "tensor", times: float | None = None) -> None:
        self.name = name  # of the argument
        if not tensor.is_cpu:
            raise ArgumentError(
                f"{name} is on {tensor.device}; the cpu backend takes tensors on cpu"
            )
        self._tensor = self._whole = tensor
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            self._whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
        if times is not None:
            self._whole = self._whole.detach() * times
        self.address, self.nbytes = self._whole.data_ptr(), self._whole.nbytes
        self.dtype = _dtype(tensor.dtype)

    def combined(self, op: str) -> str:
        """The operation of this name, for elements of this dtype."""
        if self.dtype == bool:
            return OF_TRUTH.get(op, op)
        if self.dtype.kind not in "iu" and op in ("and", "or", "xor"):
            raise ArgumentError(
                f"{self.name} is of {self.dtype}; a bitwise reduction is of integers"
            )
        return op

    def done(self, divided_by: int = 0) -> None:
        """The memory has been filled: so is the tensor."""
        if divided_by:
            divide(self._whole.detach(), divided_by)
        if self._whole is not self._tensor:
            self._tensor.detach().copy_(self._whole)

    def parts(self, n: int, splits: Sequence[int] = ()) -> list[_Filled]:
        """Parts of its first axis, for `n` members: as long as `splits` says, or all the same."""
        rows = self._whole.shape[0] if self._whole.ndim else 0
        if not splits:
            each, left = divmod(rows if self._whole.ndim else 1, n)
            if left:
                raise ArgumentError(
                    f"{self.name} has a first axis of {rows}, which cannot be divided by {n} ranks"
                )
            splits = [each] * n
        elif len(splits) != n or sum(splits) != rows or min(splits) < 0:
            raise ArgumentError(
                f"{self.name}_split_sizes is {splits}, which does not split a first axis of "
                f"{rows} for {n} ranks"
            )
        row = self.nbytes // rows if rows else 0
        starts = accumulate(splits[:-1], initial=0)
        return [
            _Part(self, start * row, many * row) for start, many in zip(starts, splits, strict=True)
        ]


class _Part(_Filled):
    """A part of a tensor's memory."""

    def __init__(self, of: _Filled, start: int, nbytes: int) -> None:
        self.address, self.nbytes, self.dtype = of.address + start, nbytes, of.dtype
        self._of, self.name = of, of.name

    def done(self, divided_by: int = 0) -> None:
        pass


def _all(tensors: Sequence[Tensor], name: str, times: float | None = None) -> list[_Filled]:
    return [_Filled(tensor, f"{name}[{k}]", times) for k, tensor in enumerate(tensors)]


def _numbers(splits: Sequence[Any], name: str) -> list[int]:
    """Splits of a list, or of an array or tensor, as integers."""
    try:
        return [index(each) for each in splits]
    except TypeError:
        raise ArgumentError(f"{name} is {splits}: give one integer for each rank") from None


@cache
def _dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return dtype_of("tensor", dtype)


def _places(memory: Sequence[_Filled]) -> list[int]:
    return [*(each.address for each in memory), *(each.nbytes for each in memory)]
