#!/usr/bin/env bash
# Makes a folder with the programs for CPUs and GPUs, for machines that have torch 2.11 and do not build: build/bundle_out/pentatron,
# and the same as pentatron-bundle.tar.xz (at most 60 MB). Nothing else has to be installed there; `bin/pentatron` finds torch, and
# `scripts/gpu_check.sh --bundle FOLDER` tests and measures a GPU with it.
#
#   scripts/bundle.sh [--build FOLDER] [--out FOLDER]
#
# --build: a build folder to take the programs from, as it is (default: builds the preset `bundle`, which needs nvcc and takes about
# 30 minutes of a core). --out: where to (default build/bundle_out).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/setup.sh"
. "$ROOT/scripts/packaging/build.sh"
read_packaging_options "$@"
OUT=${OUT:-$ROOT/build/bundle_out}
build_for_packaging "${GPU_TESTS[@]}"

python3 -c 'import lzma' 2>/dev/null || fail "python3 has no module lzma" "a python3 of the distribution"
folder="$OUT/pentatron"
tests=()
for test in "${GPU_TESTS[@]}"; do
  if [ -x "$BUILD/modules/$test" ]; then tests+=(--test "$test"); fi
done
python3 "$ROOT/scripts/packaging/programs.py" "$BUILD" "$folder" "${tests[@]}"
# What gpu_check.sh --bundle reads.
mkdir -p "$folder/check"
cp "$ROOT/scripts/gpu_check.sh" "$folder/"
cp -r "$ROOT/scripts/gpu_check/." "$folder/check/"
for data in hf_tiny training_curves; do
  mkdir -p "$folder/check/data/$data"
  for model in $CHECK_MODELS; do
    find "$ROOT/tests/data/$data" -maxdepth 1 \( -name "$model" -o -name "$model.json" -o -name "$model.safetensors" \) \
      -exec cp -r {} "$folder/check/data/$data/" \;
  done
done
cp "$ROOT/scripts/packaging/bundle_readme.md" "$folder/README.md"
find "$folder" -name __pycache__ -prune -exec rm -r {} +
tar -C "$OUT" --sort=name --owner=0 --group=0 --mtime=@0 -cf - pentatron |
  python3 -c '
import lzma, shutil, sys
# The programs share most of their code, about 50 MB apart: a dictionary of 192 MiB finds it (2 GB of memory).
filters = [{"id": lzma.FILTER_LZMA2, "preset": 4, "dict_size": 192 << 20}]
with lzma.open(sys.argv[1], "wb", filters=filters) as out:
    shutil.copyfileobj(sys.stdin.buffer, out, 1 << 20)' "$OUT/pentatron-bundle.tar.xz.partial"
mv "$OUT/pentatron-bundle.tar.xz.partial" "$OUT/pentatron-bundle.tar.xz"
megabytes=$(($(stat -c %s "$OUT/pentatron-bundle.tar.xz") / 1000000))
if [ "$megabytes" -gt 60 ]; then
  fail "the bundle has $megabytes MB, but at most 60 MB are allowed" "fewer architectures: CUDAARCHS=90 scripts/bundle.sh"
fi
say "$OUT/pentatron-bundle.tar.xz: $megabytes MB"
