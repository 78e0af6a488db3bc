#!/usr/bin/env bash
# Installs what is missing, builds pentatron, and trains a small GPT on text that comes with the repository.
#
#   scripts/quickstart.sh [key=value ...]      e.g. scripts/quickstart.sh train.train_iters=500
#
# Configuration keys are passed on to `pentatron train`. Run again, it starts training within seconds.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/setup.sh"

case "${1:-}" in
-h | --help)
  sed -n '2,7s/^# \{0,1\}//p' "$0"
  exit 0
  ;;
esac

setup_begin
install_packages $BUILD_PACKAGES
setup_torch
setup_end
configure_and_build release
# A folder holds one run: each start takes the next free one.
run=runs/quickstart
for ((n = 2; ; n++)); do
  [ -e "$run" ] || break
  run=runs/quickstart-$n
done
exec "$ROOT/build/release/pentatron" train "$ROOT/examples/quickstart.yaml" logger.dir="$run" checkpoint.save="$run/checkpoints" "$@"
