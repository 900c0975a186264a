#!/usr/bin/env bash
# All that is to be run on a machine with a GPU, in one call; at the top of the repository, after carry.sh:
#   OUT=FOLDER bench/gpu/on_machine.sh [STEP...]
# Steps, the most valuable first (default: all but tests-alone, sanitizer; install comes before any other):
#   install       packages of .gpu-kit and .whl, for the python3 that is there (KEEP_NVSHMEM=1: the NVSHMEM of the
#                 machine instead of the carried one); a second call on the same machine needs what it adds alone
#   info          the machine, `gpushmem info`, `gpushmem doctor`
#   hello         examples/ring.py: 1 PE; 2 PEs with MPS; 2 PEs that share the GPU without
#   first-hour    what may hang or be wrong on a GPU though nothing without one can show it, each by itself, in this
#                 order: ordering (pytest: who sees what after what), polls, busy, closures, loading, loading-host
#                 (bench/gpu/hour.py), far (the same, to another machine: ACROSS="srun -N 2 -n 2" or the like),
#                 multicast (pytest), ibgda (ring.py over adapters), plans (pytest); each is a step, too
#   notice        what a PE says, and what --timeout does, when code is loaded beside a kernel that waits
#   compilers     kernels by numba-cuda-mlir, if it is there: bench/gpu/both.py, then all by it: both.py, ring.py,
#                 COMPILED_TESTS (pytest); compiled-tests: the latter alone
#   tests         pytest -m gpu, with MPS if it can be started; TESTS: what pytest is given, TESTS_LIMIT: seconds
#   fault         a kernel that fails: pytest without MPS, which it would take from all others; and what it does to
#                 other processes, without MPS and with it (bench/gpu/fault.py)
#   bench         bench/gpu with 1 PE: operations, signals, copies, launches; BENCH and MPS_BENCH: which of them
#   moving        bench/gpu/moving.py: copy_block and reduce_rows_block, bytes a second, products; with 2 and 4 PEs
#                 all-reduces; moving.jsonl in $OUT
#   counters      bench/gpu/counters.py: ncu's counters of each inner loop, with 1 PE; counters.jsonl in $OUT
#   first         bench/gpu: from the start of a process to its first kernel's end
#   bench-mps     bench/gpu --short with MPS_PES ("2 4") PEs that share the GPU, with MPS
#   bench-shared  the same, without: kernels that do not wait
#   examples      all of them, on both backends
#   tests-alone   pytest -m gpu without MPS
#   sanitizer     compute-sanitizer's memcheck of the ring
# With STOP=1 nothing follows if the ring of 1 PE fails. WORKERS: of pytest, default 9; SHARES: each PE of a test has
# that part of the GPU under MPS, default 4; TEST_TIMEOUT: seconds of a test, default 60.
# A step has its own limit, and all have until LIMIT (seconds, default 570); none stops the next. What comes out is
# in $OUT as soon as a step ends: log.txt (as it runs), summary.txt, gpu.json, junit files. The GPU's settings stay as they are: MPS is a daemon that
# is started without touching them, and stopped again. --rehearse (or REHEARSE=1), with PYTHON=..., runs all of it
# without a GPU, on the emulation of tests/nvshmem, the first hour on the cpu backend; then nothing is installed, and
# what needs results of the emulation fails.
set -uo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export OUT=${OUT:-$top/out} PYTHON=${PYTHON:-python3} REHEARSE=${REHEARSE:-}
export WHICH="${WHICH:-gpu and not slow and not sweep}"  # of the tests
export WORK=${WORK:-/tmp/gpushmem-on-machine} PYTHONUNBUFFERED=1
hour=(ordering polls busy closures loading loading-host far multicast ibgda plans)
all=(info hello first-hour notice compilers tests fault moving bench counters first bench-mps bench-shared examples)
[ "${1:-}" != --rehearse ] || { export REHEARSE=1; shift; }
[ -z "$REHEARSE" ] || export PYTHONDONTWRITEBYTECODE=1  # on the machine it is kept: `first` measures imports
steps=("${@:-${all[@]}}"); [ $# -gt 0 ] || steps=("${all[@]}")
end=$((SECONDS + ${LIMIT:-570})); kept=${KEEP_NVSHMEM:+-kept}
export GPUSHMEM_CACHE_DIR=${GPUSHMEM_CACHE_DIR:-$WORK/cache}  # NVSHMEM's functions are compiled once
mkdir -p "$GPUSHMEM_CACHE_DIR"
mkdir -p "$OUT"; OUT=$(cd "$OUT" && pwd)
export LOG=$OUT/log$kept.txt SUMMARY=$OUT/summary$kept.txt RESULTS=$OUT KEPT=$kept

step() {  # step NAME SECONDS COMMAND...: in the log; its end in the summary
  local name=$1 limit=$2 left=$((end - SECONDS)) began=$SECONDS code; shift 2
  [ "$left" -gt 5 ] || { echo "$name: no time left" | tee -a "$SUMMARY"; return 1; }
  [ "$limit" -lt "$left" ] || limit=$left
  printf '\n===== %s (%s s at most)\n' "$name" "$limit" >>"$LOG"
  timeout -k 10 "$limit" "$@" >>"$LOG" 2>&1 </dev/null; code=$?
  case $code in 0) said=ok ;; 124 | 137) said="ran out of its $limit s" ;; *) said="failed, exit status $code" ;; esac
  echo "$name: $said, $((SECONDS - began)) s" | tee -a "$SUMMARY"
  results
  [ $code = 0 ] || sed -n '/^===== /h;//!H;${x;p}' "$LOG" | tail -n 8 | cut -c1-200
  return $code
}

results() {  # few files, at the top of $OUT, after every step: the machine may go away
  local file
  for file in gpu gpu-compile; do
    [ ! -f "$OUT/bench$kept/$file.json" ] || cp "$OUT/bench$kept/$file.json" "$OUT/$file$kept.json"
  done
}

# --- MPS: steps that are named ...-mps

mps_on() {
  [ -z "$REHEARSE" ] || { export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps; return 0; }
  command -v nvidia-cuda-mps-control >/dev/null || return 1
  export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d >>"$LOG" 2>&1 && "$PYTHON" - >>"$LOG" 2>&1 <<<'
from cuda.core import Device
Device(0).set_current(); print("a context with MPS:", Device(0).name)' && return 0
  mps_off; return 1
}
mps_off() {
  [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || [ -n "$REHEARSE" ] || echo quit | timeout 20 nvidia-cuda-mps-control >>"$LOG" 2>&1
  cat "$WORK"/mps-log/*.log 2>/dev/null | tail -n 20 >>"$LOG"
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
}
trap 'mps_off' EXIT
# NVSHMEM lets kernels of PEs that share a GPU wait for each other only if their shares add up to 100 or less.
share() { export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / $1)); }
with_mps() {  # with_mps PES STEP SECONDS COMMAND...
  local n=$1; shift
  if mps_on; then share "$n"; step "$@"; else echo "$1: MPS cannot be started" | tee -a "$SUMMARY"; fi
  mps_off
}

# --- steps

install() {
  mkdir -p "$WORK/site"
  tar -C "$top" --exclude=./.git --exclude='./.venv*' --exclude=./.gpu-kit --exclude=./.whl --exclude=./out -c . | tar -x -C "$WORK"
  ln -sfn ../kernels "$WORK/gpushmem/kernels"
  local info version
  version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$WORK/gpushmem/__init__.py")
  info=$WORK/site/gpushmem-${version:-0}.dist-info
  mkdir -p "$info"; printf 'Metadata-Version: 2.1\nName: gpushmem\nVersion: %s\n' "${version:-0}" >"$info/METADATA"
  # Of the plug-in of pytest, which knows the tests' marks.
  awk '/^\[project.entry-points.pytest11\]/ { print "[pytest11]"; on = 1; next } /^$/ { on = 0 } on { gsub(/"/, ""); print }' \
    "$WORK/pyproject.toml" >"$info/entry_points.txt"
  if [ -n "$REHEARSE" ]; then
    eval "$(cd "$WORK" && PYTHONPATH=$WORK:$WORK/site "$PYTHON" - <<<'
from tests.nvshmem import emulation
for name in ("EMULATION_LIBCUDA", "PYTHONPATH"):
    print(f"export {name}={emulation.environment(EMULATION_DEVICES=1)[name]}")')"
    export EMULATION_DEVICES=1
    return
  fi
  export PYTHONPATH=$WORK:$WORK/site${PYTHONPATH:+:$PYTHONPATH}
  local nvidia kit=$top/.gpu-kit
  if [ -d "$kit" ]; then rm -rf "$WORK/kit"; cp -r "$kit" "$WORK/kit"; else kit=$WORK/kit; fi
  nvidia=$("$PYTHON" -c 'import site; print(site.getsitepackages()[0])')/nvidia
  if [ ! -d "$nvidia/nvshmem.before" ]; then
    # Its metadata goes with it, or that would be taken for the version.
    [ -n "${KEEP_NVSHMEM:-}" ] || { mkdir -p "$WORK/before"; mv "$nvidia"/../nvidia_nvshmem_cu*.dist-info "$WORK/before/"; } || true
    . "$kit/use.sh"
  elif [ -z "${KEEP_NVSHMEM:-}" ]; then KEEP_NVSHMEM=1 . "$kit/use.sh"  # done by an earlier call
  else
    rm -rf "$nvidia/nvshmem" "$nvidia"/../nvidia_nvshmem_cu*.dist-info
    mv "$nvidia/nvshmem.before" "$nvidia/nvshmem"; mv "$WORK"/before/* "$nvidia/.."
    . "$kit/use.sh"
  fi
  local nvcc
  nvcc=$(command -v nvcc || ls -d /usr/local/cuda/bin/nvcc 2>/dev/null | head -1)
  [ -n "${CUDA_HOME:-}" ] || [ -z "$nvcc" ] || export CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  "$PYTHON" - "$top/.whl" "$WORK/site" <<'P'
import glob, re, subprocess, sys, tarfile
from importlib import metadata

def version(name):
    try:
        return tuple(map(int, re.findall(r"\d+", metadata.version(name))[:2]))
    except metadata.PackageNotFoundError:
        return None

def unpack(name):
    for file in glob.glob(f"{sys.argv[1]}/*/{name}.txz"):
        tarfile.open(file).extractall(sys.argv[2], filter="data")
        print("unpacked:", file)

wanted = {name: not version(name) for name in ("platformdirs", "filecheck")}
if version("numpy") >= (2, 5):  # numba-cuda 0.30 looks for np.row_stack, which 2.5 does not have
    unpack("numpy")
if not version("numba-cuda-mlir"):
    unpack("numba_cuda_mlir")
wheels = [w for name, yes in wanted.items() if yes for w in glob.glob(f"{sys.argv[1]}/*/{name}-*.whl")]
print("install:", wheels or "nothing more")
if wheels:
    # Where the machine's own are, which this replaces: numba-cuda is found by a .pth file there.
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--upgrade", *wheels], check=True)
P
}
info() {
  nvidia-smi; nvidia-smi -q | grep -iE "compute mode|mig mode|persistence" ; uname -a; df -h /dev/shm /tmp
  "$PYTHON" -m pip list 2>/dev/null | grep -iE "^(numba|llvmlite|cuda|nvidia|nvshmem|numpy|torch|cupy|mpi4py|pytest|click|psutil|platformdirs|cffi)"
  "$PYTHON" - <<'P'
import numba, numba.cuda, numpy, cuda.core
for module in (numba, numba.cuda, numpy):
    print(module.__name__, getattr(module, "__version__", ""), module.__file__)
print("cuda-core", cuda.core.__version__)
from cuda.pathfinder import find_nvidia_header_directory, load_nvidia_dynamic_lib
for name in ("nvshmem", "cccl", "cudart"):
    print("headers", name, find_nvidia_header_directory(name))
for name in ("nvrtc", "nvvm", "nvJitLink", "nvshmem_host"):
    try:
        print("library", name, load_nvidia_dynamic_lib(name).abs_path)
    except Exception as error:
        print("library", name, error)
import nvshmem.core
print(nvshmem.core.get_version())
P
  "$PYTHON" -m gpushmem info; "$PYTHON" -m gpushmem info --json >"$OUT/info$KEPT.json"
  "$PYTHON" -m gpushmem doctor -n 1; "$PYTHON" -m gpushmem doctor -n 4; true
}
run() { "$PYTHON" -m gpushmem run --backend nvshmem -n "$@"; }
hello() {
  NVSHMEM_DEBUG=${NVSHMEM_DEBUG:-WARN} run "$1" --heap-size 64M --verbose --tag-output examples/ring.py
}
tests() {  # tests NAME
  GPUSHMEM_BACKEND=nvshmem "$PYTHON" -m pytest -p no:benchmark -p bench.gpu.live -n "${WORKERS:-9}" --maxschedchunk 1 \
    -o cache_dir="$WORK/.pytest_cache" -m "$WHICH" --timeout "${TEST_TIMEOUT:-60}" -ra --tb short --durations 10 --junitxml "$OUT/junit-$1$KEPT.xml" ${TESTS:-tests}
}
bench() { "$PYTHON" bench/gpu --out "$OUT/bench$KEPT" --kernels "$WORK/compiled$KEPT" ${REHEARSE:+--rehearse} "$@"; }
example() {  # example FILE BACKEND PES
  local said; said=$(mktemp "$WORK/said-XXXXXX")
  if timeout -k 5 60 "$PYTHON" -m gpushmem run --backend "$2" -n "$3" --heap-size 256M "$1" >"$said" 2>&1
  then echo "$1, $2, $3 PEs: ok"; else echo "$1, $2, $3 PEs: exit status $?" "$(tail -n 20 "$said")"; return 1; fi
}
examples() {  # several at a time
  for file in examples/*.py; do
    for how in "cpu 1" "cpu 4" "nvshmem 1" ${CUDA_MPS_PIPE_DIRECTORY:+"nvshmem 2" "nvshmem 4"}; do echo "$file $how"; done
  done | xargs -P "${AT_ONCE:-6}" -L 1 bash -c 'example "$@"' -
}
sanitizer() {
  compute-sanitizer --target-processes all "$PYTHON" -m gpushmem run --backend nvshmem -n 1 --heap-size 64M examples/ring.py
}
# The first hour: on as many GPUs as there are, at most 2; a rehearsal on the cpu backend.
export BACKEND=nvshmem MARKED="-m gpu"
[ -z "$REHEARSE" ] || BACKEND=cpu MARKED=
gpus() { [ -n "$REHEARSE" ] && echo 2 || nvidia-smi -L 2>/dev/null | grep -c ^GPU; }
hour() {  # hour NAME [PES]
  "$PYTHON" -m gpushmem run --backend "$BACKEND" -n "${2:-$PES}" --heap-size 64M bench/gpu/hour.py "$1"
}
judge() {  # judge NAME PYTEST-ARGUMENTS...: every result in the log as it comes
  local name=$1; shift
  GPUSHMEM_BACKEND=$BACKEND GPUSHMEM_TEST_PES=1,2 "$PYTHON" -m pytest -vv -o cache_dir="$WORK/.pytest_cache" \
    --timeout 60 -ra --tb short --junitxml "$OUT/junit-$name$KEPT.xml" $MARKED "$@"
}
notice() {  # the launch of `tell` ends with the timeout, after a notice
  local said code
  said=$("$PYTHON" -m gpushmem run --backend "$BACKEND" -n 1 --timeout 11 --heap-size 64M bench/gpu/hour.py loading 2>&1); code=$?
  echo "$said"; echo "exit status $code"
  [ -z "$REHEARSE" ] || return $code  # the cpu backend loads code at any time
  [ $code != 0 ] && grep -q 'loading the code of `tell` has waited for 10' <<<"$said" &&
    grep -q 'loading the code of `tell` has waited for 11 s' <<<"$said"
}
with_mlir() {  # with_mlir COMMAND...
  "$PYTHON" -c 'from numba_cuda_mlir import cuda' || { echo "numba-cuda-mlir cannot be imported"; return 1; }
  "$@"
}
fault() { "$PYTHON" bench/gpu/fault.py || [ -n "$REHEARSE" ]; }  # no kernel fails in a rehearsal
moving() {  # moving PES
  "$PYTHON" -m gpushmem run --backend "$BACKEND" -n "$1" --heap-size 1G bench/gpu/moving.py ${REHEARSE:+--rehearse} | tee -a "$OUT/moving.jsonl"
}
counters() { GPUSHMEM_BACKEND=$BACKEND "$PYTHON" bench/gpu/counters.py ${REHEARSE:+--rehearse} | tee -a "$OUT/counters.jsonl"; }
both() { "$PYTHON" -m gpushmem run --backend "$BACKEND" -n 1 bench/gpu/both.py; }
t=tests/gpu/test_gpu.py::test_
export COMPILED_TESTS="${COMPILED_TESTS:-${t}copies_in_kernels ${t}single_elements ${t}atomics \
  ${t}who_sees_the_signal_sees_the_data ${t}waits_end_in_time ${t}collectives ${t}peer_arrays tests/kernels/test_all_reduce.py}"
compiled_tests() {
  GPUSHMEM_BACKEND=nvshmem "$PYTHON" -m pytest -p no:benchmark -p bench.gpu.live -n "${WORKERS:-9}" --maxschedchunk 1 \
    -o cache_dir="$WORK/.pytest_cache" -m "$WHICH" --timeout "${TEST_TIMEOUT:-60}" -ra --tb short --junitxml "$OUT/junit-compilers$KEPT.xml" $COMPILED_TESTS
}
far() {
  if [ -n "$REHEARSE" ]; then "$PYTHON" -m gpushmem run --backend cpu --nodes 2 -n 2 --heap-size 64M bench/gpu/hour.py far
  elif [ -n "${ACROSS:-}" ]; then GPUSHMEM_BACKEND=nvshmem $ACROSS "$PYTHON" bench/gpu/hour.py far
  else echo 'needs two machines: ACROSS="srun -N 2 -n 2"'; return 1; fi
}
ibgda() {
  if [ -n "$REHEARSE" ]; then "$PYTHON" -m gpushmem run --backend cpu --nodes 2 -n 2 --heap-size 64M examples/ring.py
  elif [ -e /dev/infiniband ]; then NVSHMEM_DISABLE_P2P=1 run 2 --transport ibgda --heap-size 64M examples/ring.py
  else echo "needs adapters: there is no /dev/infiniband"; return 1; fi
}
compiled() {
  export GPUSHMEM_COMPILER=numba-cuda-mlir
  if mps_on; then share 4; fi
  step "compilers, tests by numba-cuda-mlir" "${COMPILED_LIMIT:-90}" bash -c "with_mlir compiled_tests"; mps_off
  unset GPUSHMEM_COMPILER
}
export -f info run hello tests bench example examples sanitizer hour judge notice with_mlir fault both moving counters compiled_tests far ibgda

echo "$(date -u) $*" >>"$SUMMARY"
printf '\n===== install\n' >>"$LOG"
began=$SECONDS
install >>"$LOG" 2>&1 && echo "install: ok, $((SECONDS - began)) s" | tee -a "$SUMMARY" || { echo "install: failed" | tee -a "$SUMMARY"; tail -n 20 "$LOG"; }
cd "$WORK" || exit 1
found=$(gpus); export PES=$((found > 1 ? 2 : 1))
for name in "${steps[@]/first-hour/${hour[*]}}"; do for name in $name; do
  case $name in
    install) ;;
    info) step info 90 bash -c info ;;
    hello)
      step "hello, 1 PE" 60 bash -c "hello 1" || [ -z "${STOP:-}" ] || { echo "stop" | tee -a "$SUMMARY"; break 2; }
      with_mps 2 "hello, 2 PEs, MPS" 60 bash -c "hello 2"
      step "hello, 2 PEs, no MPS" 30 bash -c "hello 2" ;;
    ordering)
      if [ "$found" -lt 2 ] && mps_on; then share 2; fi
      step ordering "${ORDERING_LIMIT:-150}" bash -c "judge ordering ${ORDERING:-tests/conformance/test_ordering.py}"; mps_off ;;
    notice) step notice 30 bash -c notice ;;
    compiled-tests) compiled ;;
    compilers)
      export GPUSHMEM_COMPILER=; step "compilers, each its own" 60 bash -c "with_mlir both"
      export GPUSHMEM_COMPILER=numba-cuda-mlir; step "compilers, all by numba-cuda-mlir" 45 bash -c "with_mlir both"
      with_mps 2 "compilers, ring.py by numba-cuda-mlir, 2 PEs" 30 bash -c "with_mlir hello 2"
      unset GPUSHMEM_COMPILER
      compiled ;;
    polls | busy | closures | loading | loading-host) step "$name" 45 bash -c "hour $name" ;;
    far) step far 60 bash -c far ;;
    multicast) step multicast 60 bash -c "judge multicast ${MULTICAST:--k multicast tests/conformance/test_teams.py tests/gpu}" ;;
    ibgda) step ibgda 60 bash -c ibgda ;;
    plans) step plans 120 bash -c "judge plans ${PLANS:-tests/kernels}" ;;
    tests)
      if mps_on; then share "${SHARES:-4}"; else echo "tests: without MPS" | tee -a "$SUMMARY"; fi
      step tests "${TESTS_LIMIT:-240}" bash -c "tests tests"; mps_off ;;
    fault)
      step fault 60 bash -c "TESTS=tests/gpu/test_gpu.py::test_a_kernel_that_fails WORKERS=1 tests fault"
      step "fault, others without MPS" 60 bash -c fault
      with_mps 4 "fault, others with MPS" 60 bash -c fault ;;
    tests-alone) step tests-alone "${TESTS_LIMIT:-240}" bash -c "tests alone" ;;
    moving)
      step moving 60 bash -c "set -o pipefail; moving 1"
      for n in 2 4; do with_mps "$n" "moving, $n PEs" 60 bash -c "set -o pipefail; moving $n"; done ;;
    bench) step bench 150 bash -c "bench -n 1 ${BENCH:-ops ping-pong copy launch}" ;;
    counters) step counters 120 bash -c "set -o pipefail; counters" ;;
    first) step first 150 bash -c "bench first ${TURNS:+--turns $TURNS}" ;;
    bench-mps)
      for n in ${MPS_PES:-2 4}; do with_mps "$n" "bench-mps, $n PEs" 90 bash -c "bench --short -n $n ${MPS_BENCH:-ops ping-pong copy}"; done ;;
    bench-shared)
      step "bench-shared, 2 PEs" 60 bash -c "bench --short -n 2 ops copy"
      step "bench-shared, 4 PEs" 60 bash -c "bench --short -n 4 ops copy" ;;
    examples)
      if mps_on; then share 4; fi
      step examples 200 bash -c examples; mps_off ;;
    sanitizer) step sanitizer 120 bash -c sanitizer ;;
    *) echo "there is no step $name" | tee -a "$SUMMARY" ;;
  esac
done; done
rm -rf "$OUT/bench$kept"
{
  echo; for file in "$OUT"/junit-*"$kept".xml; do
    [ -f "$file" ] && echo "$(basename "$file"): $(grep -o '<testsuite [^>]*' "$file" | head -1 | grep -oE '(errors|failures|skipped|tests)="[0-9]+"' | tr '\n' ' ')"
  done
  grep -aE "^(put|get|p |g |atomic|signal|launch|process start)" "$LOG" | cut -c1-150
} >>"$SUMMARY"
printf '\n===== summary\n'; cut -c1-132 "$SUMMARY" | tail -c 10000
