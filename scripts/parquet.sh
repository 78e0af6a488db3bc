#!/usr/bin/env bash
# Makes pentatron read Parquet files: installs Apache Arrow (PyPI's pyarrow wheel, 45 MB) into .deps/parquet and builds the
# program pentatron-parquet in every build folder. Without arguments.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/setup.sh"

setup_begin
install_wheels parquet 400 --no-deps $PARQUET_PINS
setup_end
found=
for cache in "$ROOT"/build/*/CMakeCache.txt; do
  [ -f "$cache" ] || continue
  folder=$(dirname "$cache")
  say "building ${folder#"$ROOT/"}/pentatron-parquet"
  { cmake "$folder" && cmake --build "$folder" --target pentatron-parquet; } >"$DEPS/configure.log" 2>&1 || {
    tail -20 "$DEPS/configure.log" >&2
    fail "pentatron-parquet was not built in ${folder#"$ROOT/"}" "rm -r ${folder#"$ROOT/"} and scripts/quickstart.sh, then this again"
  }
  found=yes
done
if [ -z "$found" ]; then say "Apache Arrow is installed; the next build contains pentatron-parquet"; fi
