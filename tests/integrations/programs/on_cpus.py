"""Stand-ins for CUDA calls: what is written for GPUs runs on CPUs, whatever carries it."""

import contextlib

import torch

__all__ = ["stand_in"]


class Stream:
    """A stream, or an event, on which everything has been done."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: Stream()


class OnCpus(torch.overrides.TorchFunctionMode):
    """device="cuda", written out, is the CPU; its memory is not pinned."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        return func(*args, **kwargs)


def stand_in():
    """Put them in, for the life of this process."""
    for name, value in {
        "current_device": lambda: torch.device("cpu"), "synchronize": lambda *args: None,
        "Stream": Stream, "Event": Stream, "current_stream": Stream, "default_stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(), "empty_cache": lambda: None,
    }.items():  # fmt: skip
        setattr(torch.cuda, name, value)
    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    OnCpus().__enter__()
