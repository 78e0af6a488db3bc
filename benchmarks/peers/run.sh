#!/usr/bin/env bash
# Times pentatron and the other systems alternately in one run on the same work: GPT-2 124M (1 x 1024 tokens), a Llama of 8 layers
# (2 x 1024) and a Mixtral of 4 with 8 experts (4 x 512), fp32 and bf16, 2 threads. The peers get .deps/peers for themselves (5 GB).
#
#   benchmarks/peers/run.sh [--models gpt2_124m] [--classes bf16] [--rounds 5] [--out FILE.json]
#
# Needs a quiet machine: nothing else should run. Prints markdown tables; all step times go to the JSON file.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/scripts/setup.sh"
case "${1:-}" in -h | --help)
  sed -n '2,7s/^# \{0,1\}//p' "$0"
  exit 0
  ;;
esac

setup_begin
install_packages $BUILD_PACKAGES python3-dev
setup_torch
install_wheels peers 8000 $PEER_PINS
setup_end
configure_and_build release
exec "$ROOT/.deps/peers/bin/python" "$ROOT/benchmarks/peers/compare.py" --python "$ROOT/.deps/peers/bin/python" \
  --pentatron "$ROOT/build/release/pentatron" --cache "$ROOT/.deps/inductor" --out "$ROOT/build/peers.json" "$@"
