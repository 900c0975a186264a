"""PyTorch's processes beside mpi4py's."""


def begin(comm):
    """Let the processes of a communicator be those of `torch.distributed`, by Gloo, once."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        port = comm.bcast(29500 + comm.rank)
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", f"tcp://127.0.0.1:{port}", rank=comm.rank, world_size=comm.size
        )
