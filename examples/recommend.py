"""Tell what users like by the films they saw: a table of vectors, cut by rows or columns among PEs.

gpushmem run -n 4 examples/recommend.py
"""

import numpy as np
from gpushmem.kernels import EmbeddingBags
from gpushmem.kernels.embedding import reference

import gpushmem as shmem

FILMS, DIM, GENRES = 20_000, 64, 8
USERS, MOST = 200, 24  # of each PE, and the films of one

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
rng = np.random.default_rng(0)  # the same on all PEs: each can check its result
genres = rng.normal(size=(GENRES, DIM))
vectors = genres[np.arange(FILMS) % GENRES] + rng.normal(size=(FILMS, DIM))
vectors = vectors.astype("float32")  # film k is of genre k % GENRES, and of its own

rng = np.random.default_rng(me + 1)
likes = rng.integers(GENRES, size=USERS)
films = rng.integers(FILMS // GENRES, size=(USERS, MOST)) * GENRES + likes[:, None]
films = np.where(rng.random(films.shape) < 0.5, films, rng.integers(FILMS, size=films.shape))
watched = rng.integers(4, MOST + 1, size=USERS)  # -1: no more
films = np.where(np.arange(MOST) < watched[:, None], films, -1).astype("int32")

numbers, tastes = shmem.array(films), shmem.device_array((USERS, DIM), "float32")
for parts in sorted({1, n}):
    with EmbeddingBags(
        rows=FILMS, dim=DIM, bags=USERS, most=MOST, dtype="float32", column_parts=parts, mean=True
    ) as average:
        part = np.ascontiguousarray(vectors[average.rows][:, average.columns])
        average(shmem.to_device(part), numbers, out=tastes)
        found = tastes.numpy()
        assert np.allclose(found, reference(vectors, films, mean=True), atol=1e-5)
        right = ((found @ genres.T).argmax(axis=1) == likes).mean()
        assert right > 0.9
        print(f"PE {me} has {part.shape} of the table, sends {average.sends()[0]} B: {right:.1%}")
shmem.finalize()
