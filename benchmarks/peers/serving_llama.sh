#!/usr/bin/env bash
# Builds llama-server from the sources in PyPI's llama-cpp-python, unpacks SmolLM2, writes it as GGUF in F16, and compares
# `pentatron serve` with llama-server on that file:
#   benchmarks/peers/serving_llama.sh PROGRAM [key=value...]
# A build that was stopped goes on in the next call; CMAKE_BUILD_PARALLEL_LEVEL=1 uses one processor.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/scripts/setup.sh"
program=$1
shift
setup_begin
install_packages $BUILD_PACKAGES
setup_smollm2
llama="$DEPS/llama/build/bin/llama-server"
if [ ! -x "$llama" ]; then
  free_or_fail "$DEPS" 3000 "building llama-server"
  say "building llama-server from $LLAMA_CPP_PIN"
  LOG="$DEPS/pip.log"
  sources="$DEPS/llama/vendor/llama.cpp"
  {
    { [ -f "$DEPS/llama/.unpacked" ] || {
      rm -rf "$DEPS/llama" && mkdir -p "$DEPS/llama" && python3 -m venv "$DEPS/llama/venv" &&
        TMPDIR="$DEPS" "$DEPS/llama/venv/bin/python" -m pip download --no-cache-dir --no-input --progress-bar off --no-deps \
          --no-binary llama-cpp-python -d "$DEPS/llama" "$LLAMA_CPP_PIN" &&
        tar -xzf "$DEPS"/llama/*.tar.gz -C "$DEPS/llama" --strip-components=1 && touch "$DEPS/llama/.unpacked"
    }; } &&
      cmake -S "$sources" -B "$DEPS/llama/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF &&
      cmake --build "$DEPS/llama/build" --target llama-server
  } >"$LOG" 2>&1 || explain "llama-server"
fi
setup_end
model=$(cd "$ROOT/tests/serve/peers" && python3 -c "import server; print(server.model_from('$DEPS/smollm2'))")
f16="$DEPS/smollm2/smollm2-f16.gguf"
if [ ! -f "$f16" ]; then "$program" convert "$model" "$f16" --format gguf --dtype fp16; fi
model=$f16
python3 "$ROOT/benchmarks/peers/serving.py" "$program" "$model" "$llama" "$@"
