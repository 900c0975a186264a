"""What PyTorch's own tools see of the backend: its profiler, its flight recorder's analyser."""

import gc
import os
import pickle
import time
from datetime import timedelta

import pytest

from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")


def test_calls_are_in_profiles(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            x = torch.ones(2, 3)
            with torch.profiler.profile(record_shapes=True) as profile:
                dist.all_reduce(x)
                dist.all_gather([torch.empty(2, 3) for _ in range(2)], x, async_op=True).wait()
                dist.send(x, 1) if me == 0 else dist.recv(x)
            seen = {e.name: e.input_shapes for e in profile.events() if "gpushmem" in e.name}
            message = "gpushmem:recvAnySource" if me else "gpushmem:send"
            assert seen == {
                name: [[2, 3]] for name in ("gpushmem:all_reduce", "gpushmem:all_gather", message)
            }

    run_pes(body, 2)


@pytest.fixture
def analysed(tmp_path, caplog):
    """What PyTorch's analyser says of the files in a folder."""
    analyser = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")

    def main():
        caplog.clear()
        try:
            analyser.main([str(tmp_path / "record")])
        finally:
            gc.enable()  # which it disables
        return caplog.text

    return main


def test_the_analyser_names_the_rank_that_is_missing(run_pes, tmp_path, analysed):
    """Which is in no collective and writes its record all the same."""

    def body():
        os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(tmp_path / "record" / "rank_")
        with world(tmp_path, timeout=0.5) as me:
            pair, x = dist.new_group([0, 2]), torch.ones(4)
            dist.all_gather([torch.empty(4) for _ in range(3)], x)
            dist.all_to_all_single(torch.empty(3 * me), torch.ones(3 * 1), [me] * 3, [0, 1, 2])
            if me != 1:
                dist.all_reduce(x, group=pair)
                with pytest.raises(dist.DistBackendError, match=r"for PEs? [-, \d]*1"):
                    dist.broadcast(x, 0)
            else:
                while not (tmp_path / "record" / "rank_1").exists():
                    time.sleep(0.05)

    run_pes(body, 3)
    said = analysed()
    assert "Not all ranks joining collective, sequence number: 3" in said
    assert "collective: gloo:broadcast" in said
    assert "missing ranks: {1}" in said
    assert "body at " in said
    assert "test_records.py" in said
    assert said.count("missing ranks") == 1


def test_a_record_on_demand(run_pes, tmp_path):
    def body():
        from gpushmem.torch import flight_recorder

        with pytest.raises(ValueError, match="set TORCH_FR_BUFFER_SIZE=2000 before"):
            flight_recorder.dump()
        os.environ["TORCH_FR_BUFFER_SIZE"] = "4"
        with world(tmp_path) as me:
            for k in range(9):
                dist.all_reduce(torch.ones(k))
            path = flight_recorder.dump(tmp_path / f"now{me}")
        entries = pickle.loads(path.read_bytes())["entries"]
        assert [e["input_sizes"] for e in entries] == [[[k]] for k in range(5, 9)]
        assert {e["state"] for e in entries} == {"completed"}

    run_pes(body, 2)


def test_a_monitored_barrier_names_all_that_are_missing(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            group = dist.group.WORLD
            group.monitored_barrier()
            if me:
                while not (tmp_path / "told").exists():
                    time.sleep(0.05)
                return ""
            with pytest.raises(dist.DistBackendError) as error:
                group.monitored_barrier(timedelta(seconds=0.5), wait_all_ranks=True)
            (tmp_path / "told").touch()
            return str(error.value)

    said = run_pes(body, 3)[0]
    assert said.startswith("barrier has waited 0.5 s for PEs 1, 2, its limit"), said
