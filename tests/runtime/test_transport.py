"""What NVSHMEM is told: the tables, the user's own variables, and what contradicts them."""

import os

import pytest

from gpushmem.backends.nvshmem import transport
from gpushmem.errors import ArgumentError

HEAP = 1 << 30
GRANULE = "NVSHMEM_CUMEM_GRANULARITY"
SIZE = str(HEAP + transport.BESIDE)


@pytest.fixture
def environ(monkeypatch):
    """Put variables into an environment without any of NVSHMEM; see what `apply` makes of it."""
    for name in [name for name in os.environ if name.startswith(("NVSHMEM_", "GPUSHMEM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(transport, "_put", {})

    def apply(heap=HEAP, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        transport.apply(heap)
        return {name: text for name, text in os.environ.items() if name.startswith("NVSHMEM_")}

    before = dict(os.environ)
    yield apply
    os.environ.clear()
    os.environ.update(before)


def test_nothing_but_the_heap_is_told_by_default(environ):
    assert environ() == {"NVSHMEM_SYMMETRIC_SIZE": SIZE, GRANULE: "134217728"}


@pytest.mark.parametrize(
    ("heap", "granule"),
    [(1 << 20, 8 << 20), (1 << 30, 128 << 20), (4 << 30, None), (64 << 30, None)],
)
def test_small_heaps_are_made_of_small_granules(environ, heap, granule):
    told = environ(heap)
    assert told.get(GRANULE) == (granule and str(granule))
    assert environ(heap, **{GRANULE: str(2 << 20)})[GRANULE] == str(2 << 20), "the user's counts"


@pytest.mark.parametrize("name", transport.TRANSPORTS)
def test_transports(environ, name):
    told = environ(GPUSHMEM_TRANSPORT=name)
    assert told.pop("NVSHMEM_SYMMETRIC_SIZE") == SIZE
    del told[GRANULE]
    assert told == transport.TRANSPORTS[name]


def test_other_processes_have_other_heaps(environ):
    """What was told here is not for those that this one starts; what the user says is."""
    environ(NVSHMEM_DEBUG="INFO", GPUSHMEM_TRANSPORT="p2p")
    found = transport.without_ours(os.environ)
    kept = {name: text for name, text in found.items() if name.startswith("NVSHMEM_")}
    assert kept == {"NVSHMEM_DEBUG": "INFO"}
    assert found["GPUSHMEM_TRANSPORT"] == "p2p"
    os.environ["NVSHMEM_SYMMETRIC_SIZE"] = "9G"
    assert transport.without_ours(os.environ)["NVSHMEM_SYMMETRIC_SIZE"] == "9G"


def test_adapters(environ):
    told = environ(GPUSHMEM_HCA="mlx5_0:1")
    assert told["NVSHMEM_HCA_LIST"] == "mlx5_0:1"
    assert told["NVSHMEM_ENABLE_NIC_PE_MAPPING"] == "1"


def test_a_map_of_adapters(environ):
    told = environ(GPUSHMEM_NIC_MAP="mlx5_0:1:2", NVSHMEM_ENABLE_NIC_PE_MAPPING="yes")
    assert told["NVSHMEM_HCA_PE_MAPPING"] == "mlx5_0:1:2"
    assert told["NVSHMEM_ENABLE_NIC_PE_MAPPING"] == "yes"


# The user's variables, and what is said; None: they are left as they are.
OWN = [
    ({"NVSHMEM_REMOTE_TRANSPORT": "ucx"}, None),
    ({"NVSHMEM_REMOTE_TRANSPORT": "ibdevx", "GPUSHMEM_TRANSPORT": "ibgda"}, None),
    ({"NVSHMEM_REMOTE_TRANSPORT": "IBRC", "GPUSHMEM_TRANSPORT": "ibrc"}, None),
    ({"NVSHMEM_SYMMETRIC_SIZE": "2G"}, None),
    (
        {"NVSHMEM_REMOTE_TRANSPORT": "ucx", "GPUSHMEM_TRANSPORT": "ibrc"},
        "NVSHMEM_REMOTE_TRANSPORT=ucx is set, and GPUSHMEM_TRANSPORT=ibrc asks for "
        "NVSHMEM_REMOTE_TRANSPORT=ibrc: unset one of the two",
    ),
    (
        {"NVSHMEM_IB_ENABLE_IBGDA": "true", "GPUSHMEM_TRANSPORT": "p2p"},
        "NVSHMEM_IB_ENABLE_IBGDA=true is set, and GPUSHMEM_TRANSPORT=p2p asks for",
    ),
    (
        {"NVSHMEM_ENABLE_NIC_PE_MAPPING": "0", "GPUSHMEM_NIC_MAP": "mlx5_0:1:2"},
        "NVSHMEM_ENABLE_NIC_PE_MAPPING=0 is set, and GPUSHMEM_NIC_MAP=mlx5_0:1:2 asks for",
    ),
    (
        {"NVSHMEM_SYMMETRIC_SIZE": "1G"},
        f"NVSHMEM_SYMMETRIC_SIZE=1G is too little for a heap of {HEAP} bytes, with which it must "
        f"be {SIZE} or more",
    ),
    ({"NVSHMEM_SYMMETRIC_SIZE": "x"}, "environment variable NVSHMEM_SYMMETRIC_SIZE: 'x'"),
    ({"GPUSHMEM_HCA": "a:1", "GPUSHMEM_NIC_MAP": "a:1:1"}, "are both set: NVSHMEM takes either"),
    (
        {"GPUSHMEM_TRANSPORT": "rope"},
        "environment variable GPUSHMEM_TRANSPORT: 'rope' is not one of",
    ),
]


@pytest.mark.parametrize(("own", "error"), OWN)
def test_what_the_user_has_set_stays(environ, own, error):
    if error is None:
        assert environ(**own).items() >= {k: v for k, v in own.items() if k[0] == "N"}.items()
        return
    with pytest.raises(ArgumentError) as caught:
        environ(**own)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)
    assert error in transport.chosen(HEAP)["problem"]


def test_a_second_time_it_is_our_own_that_is_replaced(environ):
    environ(heap=1 << 20)
    assert environ()["NVSHMEM_SYMMETRIC_SIZE"] == SIZE


def test_what_info_tells(environ):
    environ(NVSHMEM_SYMMETRIC_SIZE="4G", GPUSHMEM_TRANSPORT="ibgda")
    assert transport.chosen(HEAP) == {
        "transport": "ibgda", "heap": HEAP, "hca": None, "nic_map": None, "problem": None,
        "variables": {
            "NVSHMEM_SYMMETRIC_SIZE": "4G", GRANULE: "134217728", "NVSHMEM_IB_ENABLE_IBGDA": "1"
        },
    }  # fmt: skip
