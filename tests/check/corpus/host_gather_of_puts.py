# A good report: race, put at 1 and fcollect at 2; missing: PE 0 has to tell PE 1.
"""Hosts gather what they have put to each other, without having met."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2

shmem.init()
me = shmem.my_pe()
part, src, parts = (shmem.ones(k, dtype="float32") for k in (4, 4, 8))
shmem.put(part, src, 1 - me)  # <- 1
if FIXED:
    shmem.barrier_all()
shmem.fcollect(shmem.TEAM_WORLD, parts, part)  # <- 2
shmem.finalize()
