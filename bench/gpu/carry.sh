#!/usr/bin/env bash
# What a GPU machine without a network needs, made where there is one; run at the top of the repository.
#   bench/gpu/carry.sh KIT_SCRIPT    KIT_SCRIPT FOLDER fills FOLDER (.gpu-kit) with nvshmem4py and NVSHMEM
# Makes .gpu-kit/ and .whl/, which git ignores: Python packages for CPython 3.12 that such a machine may lack,
# or has in another version. Together with the repository they must stay below 64 MiB.
set -euo pipefail
[ -n "${1:-}" ] && [ -d bench/gpu ] || { sed -n 2,6p "$0"; exit 2; }
rm -rf .gpu-kit .whl
bash "$1" .gpu-kit >/dev/null
mkdir .whl
# on_machine.sh installs of these what is missing there, or too old.
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version 3.12 --implementation cp \
  $(printf -- '--platform manylinux_2_%s_x86_64 ' 34 28 27 24 17) --platform manylinux2014_x86_64 \
  -d .whl numba-cuda==0.30.4 cuda-core==1.2.2 'nvidia-cuda-cccl==13.0.*' platformdirs filecheck 2> >(grep -v "is ignored: it is neither" >&2)
for path in .gpu-kit .whl; do git check-ignore -q "$path" || { echo "git does not ignore $path" >&2; exit 1; }; done
# As it travels: what is tracked, and these two.
tracked=$(git ls-files -z | du -cb --files0-from=- | tail -1 | cut -f1)
carried=$(du -sb .gpu-kit .whl | awk '{ n += $1 } END { print n }')
du -sh .gpu-kit .whl
awk -v n="$((tracked + carried))" 'BEGIN { printf "in all: %.1f MiB of 64\n", n / 2^20; exit n >= 64 * 2^20 }'
