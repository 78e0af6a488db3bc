#!/usr/bin/env bash
# Tests and measures a GPU; exits with 1 if a test failed.
#
#   scripts/gpu_check.sh --bundle FOLDER [--device cpu] [--out FOLDER] [--parts start,kernels,...]
#
# with the programs of FOLDER (scripts/bundle.sh), on a machine that has only Python with a CUDA torch 2.11: no compiler, no network.
# At most 23 minutes. Writes gpu_check/gpu_check.md, one page, and gpu_check.json. --device cpu proves the script without a GPU.
#
#   scripts/gpu_check.sh [--rounds 5] [--models gpt2_124m]      options go to benchmarks/peers/compare.py
#
# builds the cuda preset for this GPU, runs the tests labelled cuda, trains a small GPT, times pentatron beside Hugging Face
# models, eager and torch.compile'd, and writes build/gpu/gpu_report.md and gpu_report.json.
#
# PYTHON names the Python that has torch and, for the comparison, transformers (default python3).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
case "${1:-}" in
-h | --help)
  sed -n '2,15s/^# \{0,1\}//p' "$0"
  exit 0
  ;;
--bundle)
  bundle=${2:-}
  if [ ! -f "$bundle/check/check.py" ]; then
    printf 'error: --bundle %s is not a bundle\n  try: a folder that scripts/bundle.sh made\n' "$bundle" >&2
    exit 1
  fi
  if ! "$PYTHON" -c 'import torch' 2>/dev/null; then
    printf 'error: %s has no torch\n  try: PYTHON=/path/to/python with torch 2.11\n' "$PYTHON" >&2
    exit 1
  fi
  cuda=$(cat "$bundle/share/pentatron/cuda_version" 2>/dev/null || true)
  found=$("$PYTHON" -c 'import torch; print(torch.version.cuda or "")')
  if [ -n "$cuda" ] && [ -n "$found" ] && [ "${found%%.*}" != "$cuda" ]; then
    printf 'error: the torch of %s is made for CUDA %s, but the bundle needs one for CUDA %s\n  try: PYTHON=/path/to/python with a torch 2.11 for CUDA %s\n' \
      "$PYTHON" "$found" "$cuda" "$cuda" >&2
    exit 1
  fi
  exec "$PYTHON" "$bundle/check/check.py" "$@"
  ;;
esac
ROOT=$(cd "$HERE/.." && pwd)
. "$ROOT/scripts/setup.sh"

if ! command -v nvidia-smi >/dev/null || ! capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1) ||
  [ -z "$capability" ]; then
  fail "no NVIDIA GPU responds on this machine" "scripts/test.sh, which needs no GPU"
fi
if [ -z "${TORCH_ROOT:-}" ]; then
  TORCH_ROOT=$("$PYTHON" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')")
fi
is_torch "$TORCH_ROOT" && [ -f "$TORCH_ROOT/lib/libtorch_cuda.so" ] &&
  "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
  fail "$PYTHON has no torch of version 2.11 or newer that sees the GPU" \
    "PYTHON=/path/to/python with: pip install torch==$TORCH_VERSION transformers==5.23.0"
export TORCH_ROOT

setup_begin
install_packages $BUILD_PACKAGES $TEST_PACKAGES
setup_nvcc
setup_end
cd "$ROOT"
CUDAARCHS=${capability/./} configure_and_build cuda -- -k 0
report=build/gpu
rm -rf "$report" && mkdir -p "$report"
ctest --test-dir build/cuda -L cuda --output-on-failure --no-tests=error --output-junit "$ROOT/$report/tests.xml" || true
# A small GPT in bf16, as one figure of the speed.
build/cuda/pentatron train model.preset=gpt2_124m dataset.type=mock train.seq_length=1024 train.micro_batch_size=8 \
  train.global_batch_size=8 train.train_iters=30 dtype=bf16 device=cuda logger.dir="$report/run" logger.plot=false \
  logger.tensorboard=false || say "the training run failed"
if "$PYTHON" -c 'import transformers' 2>/dev/null; then
  "$PYTHON" benchmarks/peers/compare.py --python "$PYTHON" --pentatron build/cuda/pentatron \
    --device cuda --steps 20 --warmup 5 --out "$report/peers.json" "$@" || say "a run of the comparison failed"
else
  say "no comparison: $PYTHON has no transformers"
  say "  try: $PYTHON -m pip install transformers==5.23.0"
fi
exec "$PYTHON" scripts/gpu_report.py --out "$report" --junit "$report/tests.xml" --metrics "$report/run/metrics.jsonl" \
  --peers "$report/peers.json" --torch "$("$PYTHON" -c 'import torch; print(torch.__version__)')" \
  --device "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)" \
  --driver "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)"
