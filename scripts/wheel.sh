#!/usr/bin/env bash
# Makes build/wheel/pentatron-*.whl: the programs for CPUs and GPUs and the Python module. `pip install` it into an environment; it
# needs torch 2.11 and no compiler (docs/python.md).
#
#   scripts/wheel.sh [--build FOLDER] [--out FOLDER]
#
# --build: a build folder to take the programs from, as it is (default: builds the preset `bundle`, which needs nvcc and takes about
# 30 minutes of a core). --out: where to (default build/wheel).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/setup.sh"
. "$ROOT/scripts/packaging/build.sh"
read_packaging_options "$@"
OUT=${OUT:-$ROOT/build/wheel}
build_for_packaging
mkdir -p "$OUT"
python3 "$ROOT/scripts/packaging/programs.py" "$BUILD" "$OUT/programs"
rm -f "$OUT"/pentatron-*.whl
python3 "$ROOT/scripts/packaging/wheel.py" "$OUT/programs" "$OUT"
rm -rf "$OUT/programs"
