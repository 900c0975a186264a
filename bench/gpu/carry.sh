#!/usr/bin/env bash
# What a GPU machine without a network needs, made where there is one; run at the top of the repository.
#   bench/gpu/carry.sh KIT_SCRIPT    KIT_SCRIPT FOLDER fills FOLDER (.gpu-kit) with nvshmem4py and NVSHMEM
# Makes .gpu-kit/ and .whl/, which git ignores: Python packages for CPython 3.12 that such a machine may lack,
# or has in another version. What travels in a call must stay below 64 MiB together with the repository: in a first
# one .gpu-kit and .whl/first, in a second one on the same machine .whl/mlir, which is numba-cuda-mlir.
set -euo pipefail
[ -n "${1:-}" ] && [ -d bench/gpu ] || { sed -n 2,7p "$0"; exit 2; }
rm -rf .gpu-kit .whl
bash "$1" .gpu-kit >/dev/null
# Packed again, with xz: it would not fit otherwise.
python3 - .gpu-kit <<'P'
import gzip, lzma, pathlib, sys
kit = pathlib.Path(sys.argv[1])
packed, use = kit / "nvshmem.tgz", kit / "use.sh"
(kit / "nvshmem.txz").write_bytes(lzma.compress(gzip.decompress(packed.read_bytes()), preset=9))
packed.unlink()
unpack = 'python3 -m tarfile -e "$_kit/nvshmem.txz" "$_site"'
use.write_text(use.read_text().replace('tar xzf "$_kit/nvshmem.tgz" -C "$_site"', unpack))
P
mkdir -p .whl/first .whl/mlir
get() {  # get FOLDER REQUIREMENT...
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.12 --implementation cp \
    $(printf -- '--platform manylinux_2_%s_x86_64 ' 34 28 27 24 17) --platform manylinux2014_x86_64 \
    -d "$@" 2> >(grep -v "is ignored: it is neither" >&2)
}
# on_machine.sh installs of these what is missing there, and this NumPy if that one is too new for numba-cuda.
get .whl/first platformdirs filecheck
whole=$(mktemp -d)
get "$whole" 'numpy==2.4.*' 'numba-cuda-mlir==0.6.*'
python3 - "$whole" .whl <<'P'
import glob, io, lzma, sys, tarfile, zipfile
left_out = "/tests/", ".pyi", "/f2py/"
filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 28}]
for target in "first/numpy", "mlir/numba_cuda_mlir":
  wheel, = glob.glob(f"{sys.argv[1]}/{target.split('/')[1]}-*.whl")
  with zipfile.ZipFile(wheel) as z, lzma.open(f"{sys.argv[2]}/{target}.txz", "w", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w") as t:
      for info in z.infolist():
          if not info.is_dir() and not any(k in info.filename for k in left_out):
              entry = tarfile.TarInfo(info.filename)
              entry.size, entry.mode = info.file_size, 0o755
              t.addfile(entry, io.BytesIO(z.read(info)))
P
rm -rf "$whole"
for path in .gpu-kit .whl; do git check-ignore -q "$path" || { echo "git does not ignore $path" >&2; exit 1; }; done
# As it travels: what is tracked, and what a call carries.
tracked=$(git ls-files -z | du -cb --files0-from=- | tail -1 | cut -f1)
in_all() {
  carried=$(du -sb "$@" | awk '{ n += $1 } END { print n }')
  awk -v n="$((tracked + carried))" -v what="$*" 'BEGIN { printf "%s: with the repository %.1f MiB of 64\n", what, n / 2^20; exit n >= 64 * 2^20 }'
}
in_all .gpu-kit .whl/first && in_all .whl/mlir
