#!/usr/bin/env bash
# What a GPU machine without a network needs, made where there is one; run at the top of the repository.
#   bench/gpu/carry.sh KIT_SCRIPT    KIT_SCRIPT FOLDER fills FOLDER (.gpu-kit) with nvshmem4py and NVSHMEM
# Makes .gpu-kit/ and .whl/, which git ignores: Python packages for CPython 3.12 that such a machine may lack,
# or has in another version. Together with the repository they must stay below 64 MiB.
set -euo pipefail
[ -n "${1:-}" ] && [ -d bench/gpu ] || { sed -n 2,6p "$0"; exit 2; }
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
mkdir .whl
get() {  # get FOLDER REQUIREMENT...
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.12 --implementation cp \
    $(printf -- '--platform manylinux_2_%s_x86_64 ' 34 28 27 24 17) --platform manylinux2014_x86_64 \
    -d "$@" 2> >(grep -v "is ignored: it is neither" >&2)
}
# on_machine.sh installs of these what is missing there, and this NumPy if that one is too new for numba-cuda.
get .whl platformdirs filecheck
whole=$(mktemp -d)
get "$whole" 'numpy==2.4.*'
python3 - "$whole" .whl/numpy.txz <<'P'
import glob, io, lzma, sys, tarfile, zipfile
wheel, = glob.glob(f"{sys.argv[1]}/numpy-*.whl")
left_out = "/tests/", ".pyi", "/f2py/"
with zipfile.ZipFile(wheel) as z, lzma.open(sys.argv[2], "w", preset=9) as packed, tarfile.open(fileobj=packed, mode="w") as t:
    for info in z.infolist():
        if not info.is_dir() and not any(k in info.filename for k in left_out):
            entry = tarfile.TarInfo(info.filename)
            entry.size, entry.mode = info.file_size, 0o755
            t.addfile(entry, io.BytesIO(z.read(info)))
P
rm -rf "$whole"
for path in .gpu-kit .whl; do git check-ignore -q "$path" || { echo "git does not ignore $path" >&2; exit 1; }; done
# As it travels: what is tracked, and these two.
tracked=$(git ls-files -z | du -cb --files0-from=- | tail -1 | cut -f1)
carried=$(du -sb .gpu-kit .whl | awk '{ n += $1 } END { print n }')
du -sh .gpu-kit .whl
awk -v n="$((tracked + carried))" 'BEGIN { printf "in all: %.1f MiB of 64\n", n / 2^20; exit n >= 64 * 2^20 }'
