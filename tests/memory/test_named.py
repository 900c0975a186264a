"""Arrays that a kernel names, as globals or in closures: those in device memory are references."""

import collections
import types

import numpy as np
import pytest

import gpushmem as shmem

pytestmark = pytest.mark.host_memory
Both = collections.namedtuple("Both", "one other")


def test_kernels_read_and_write_the_arrays_that_they_name(run_pes):
    def body():
        with shmem.session() as world:
            me, n = world.my_pe, world.n_pes
            box, inbox = shmem.full((2, 4), me, "int64"), shmem.zeros(4, "int64")
            device = shmem.to_device(np.arange(3))
            of_numpy = shmem.zeros(4, "int64", like=np)
            both = Both(box[1], (device[::2], of_numpy))
            constant, module = np.arange(3), types.ModuleType("module")
            module.box = box

            @shmem.jit
            def kernel(out):
                out[0], out[1], out[2] = module.box[1, 2], device[1], of_numpy[3]
                out[3], out[4], out[5] = both.one[0], both.other[0][1], both.other[1][3]
                out[6] = constant[2]
                box[0, 1], device[0], of_numpy[0] = 10 + me, 20 + me, 30 + me
                shmem.put(inbox, box[0], (me + 1) % n)

            for expected in ([me, 1, 0, me, 2, 0, 2], [12, 5, 8, 12, 9, 8, 2]):
                out = shmem.device_array(7, "int64")
                kernel[1, 1](out)
                shmem.barrier_all()
                assert out.numpy().tolist() == expected
                assert [box[0, 1], device[0], of_numpy[0]] == [10 + me, 20 + me, 30 + me]
                left = (me - 1) % n
                assert inbox.numpy().tolist() == [left, 10 + left, left, left]
                box[1] = 12
                device[1:] = [5, 9]
                of_numpy[3], constant[2] = 8, 77
                shmem.barrier_all()

    run_pes(body, 2)


def test_two_kernels_of_the_same_code_each_have_their_array(run_pes):
    def body():
        with shmem.session():

            def reading(array):
                @shmem.jit
                def kernel(out):
                    out[0] = array[1]

                return kernel

            arrays = [shmem.zeros(2, like=np) for _ in range(2)]
            kernels = [reading(array) for array in arrays]
            out = shmem.device_array(1)
            for kernel in kernels:  # compiled while both arrays have the same values
                kernel[1, 1](out)
            shmem.synchronize()
            for number, array in enumerate(arrays):
                array[1] = number + 1
            for number, kernel in enumerate(kernels):
                kernel[1, 1](out)
                assert out.numpy()[0] == number + 1

    run_pes(body, 1)
