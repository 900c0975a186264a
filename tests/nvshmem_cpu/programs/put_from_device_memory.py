"""PE 0 puts from an array of `device_array` to the last PE, which is on another node."""

import gpushmem as shmem


@shmem.jit
def send(dst, src):
    shmem.put_block(dst, src, shmem.n_pes() - 1)


with shmem.session():
    dst, src = shmem.zeros(8), shmem.device_array(8)
    if shmem.my_pe() == 0:
        send[1, 32](dst, src)
    shmem.synchronize()
