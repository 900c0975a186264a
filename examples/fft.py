"""Find the potential of charges on a periodic square by Fourier transforms cut among PEs.

gpushmem run -n 4 examples/fft.py
"""

import numpy as np
from gpushmem.kernels import FFT

import gpushmem as shmem

N = 256

shmem.init()
forth = FFT(shape=(N, N), dtype="complex128")
back = FFT(shape=(N, N), dtype="complex128", inverse=True)

charges = np.zeros((N, N))
charges[40, 70], charges[200, 130] = 1, -1
mine = slice(forth.rows.start, forth.rows.stop)
x = shmem.to_device(charges[mine].astype("complex128"))
waves = shmem.device_array((len(forth.columns), N), "complex128")  # [column, row]
forth(x, out=waves)

# A wave's second differences are the wave times these.
second = 2 * np.cos(2 * np.pi * np.arange(N) / N) - 2
factors = second[forth.columns, None] + second
factors[factors == 0] = np.inf  # the mean, which is arbitrary
waves.copy_from(waves.numpy() / factors)
back(waves, out=x)

# The potential's second differences are the charges: on rows whose neighbours are here, too.
u = x.numpy().real
right, left = np.roll(u, 1, axis=1), np.roll(u, -1, axis=1)
inside = u[:-2] + u[2:] + right[1:-1] + left[1:-1] - 4 * u[1:-1]
assert np.allclose(inside, charges[mine][1:-1], atol=1e-12)
print(f"PE {shmem.my_pe()}: potential from {u.min():.3f} to {u.max():.3f}")
shmem.finalize()
