"""To the first kernel's end, with gpushmem; see first.py."""

# ruff: noqa: E402  (how long importing takes is measured)

import time

marks = [("python", time.time())]

import gpushmem as shmem

marks.append(("import", time.time()))


@shmem.jit
def send(dst, src, pe):
    shmem.put_block(dst, src, pe)


shmem.init(heap_size="64M")
src, dst = shmem.ones(1024, "int64"), shmem.zeros(1024, "int64")
shmem.synchronize()
marks.append(("init", time.time()))
send[1, 128](dst, src, 0)
shmem.synchronize()
marks.append(("kernel", time.time()))
for name, when in marks:
    print(name, when, flush=True)
print("arrived", bool((dst.numpy() == 1).all()), flush=True)
shmem.finalize()
