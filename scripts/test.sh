#!/usr/bin/env bash
# Installs what is missing, builds everything with warnings as errors, and runs the tests.
#
#   scripts/test.sh                 all tests but the long ones and those for GPUs; ends with ctest's summary
#   scripts/test.sh --full [KIND]   the long proofs: all of them, or one kind
#     matrix    every layout against one rank, in-process up to 16 ranks and under MPI up to 8; bf16 over ten seeds; every size
#               of every pipeline schedule against deadlocks
#     bugs      bugs planted in parallel code, one at a time: the layouts of the ordinary tests must catch each
#     examples  examples/bert.yaml and examples/t5.yaml to their end: better than guessing by a margin
#     faults    broken set-ups; killed processes, torn files, full disks
#     launchers the same run under mpirun, torchrun and srun (installs Slurm; 5 GB into .deps/peers)
#     peers     models of every option, exports and adapters against Hugging Face transformers and peft; offline runs read by wandb
#               and mlflow (installs 5 GB into .deps/peers)
#     parquet   Parquet files through Apache Arrow (installs 150 MB into .deps/parquet)
#     serve     the server against the openai package, lm_eval, Chromium and 64 clients; SmolLM2 on tasks against lm_eval (installs 1.5 GB
#               into .deps/serve)
#     bundle    builds the bundle and the wheel, and runs them in a bare Debian 12 with torch (needs root; 5 GB into .deps/bare)
#     fuzz      every parser under libFuzzer, FUZZ_SECONDS (default 60) each
#     sanitize  the fast tests under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/setup.sh"

usage() { sed -n '2,20s/^# \{0,1\}//p' "$0"; }

# folder_of_tests: makes a folder for the tests' files and prints it: in memory where there is plenty, because tests make and
# remove many thousand small files.
folder_of_tests() {
  local free available
  free=$(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
  available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
  if [ "${free:-0}" -ge 8000 ] && [ "$available" -ge 12000 ] && [ -w /dev/shm ]; then
    mktemp -d /dev/shm/pentatron.XXXXXX
  else
    mktemp -d
  fi
}

# Runs ctest on a built preset; further arguments are ctest's.
run_ctest() {
  local preset=$1 status=0
  shift
  if [ -z "$TESTS_FOLDER" ]; then TESTS_FOLDER=$(folder_of_tests); fi
  TMPDIR=$TESTS_FOLDER ctest --test-dir "$ROOT/build/$preset" -j "$(nproc)" --output-on-failure --no-tests=error "$@" || status=$?
  return "$status"
}
TESTS_FOLDER=""
trap 'rm -rf ${TESTS_FOLDER:+"$TESTS_FOLDER"}' EXIT

default_tests() {
  local status=0
  configure_and_build ci
  run_ctest ci -LE 'cuda|full' || status=$?
  python3 "$ROOT/scripts/test_report.py" "$ROOT/build/ci"
  return "$status"
}

full_matrix() {
  configure_and_build ci --target trainer_test --target trainer_process_test --target host_memory_test \
    --target parallel_pipeline_schedule_test
  run_ctest ci -V -R '^trainer_(process_)?test[.]full_matrix|^full_host_memory_test$|[.]full_rendezvous$'
}

full_bugs() {
  configure_and_build bugs --target trainer_test
  run_ctest bugs -V -R '^trainer_test[.]planted_bugs$'
}

full_examples() {
  configure_and_build ci --target pentatron
  python3 "$ROOT/tests/docs/run_examples.py" "$ROOT/build/ci/pentatron"
}

full_faults() {
  configure_and_build ci
  run_ctest ci -R '^setup|[.](Saving|MetricsFiles|Faults|FaultCampaign)'
}

full_sanitize() {
  local status=0 support="$ROOT/tests/support" # tests kill ranks with SIGSEGV, and ask for more memory than there is
  configure_and_build asan
  LSAN_OPTIONS="suppressions=$support/lsan.supp:print_suppressions=0" ASAN_OPTIONS="detect_odr_violation=0:handle_segv=0:allocator_may_return_null=1" \
    UBSAN_OPTIONS="print_stacktrace=1" run_ctest asan -L fast -LE 'cuda|structure' || status=$?
  configure_and_build tsan
  # libgomp's barriers are unseen, so nothing is learnt of its threads: their reports are suppressed, and take most of the time.
  OMP_NUM_THREADS=1 TSAN_OPTIONS="suppressions=$support/tsan.supp:ignore_noninstrumented_modules=1:history_size=4:handle_segv=0:allocator_may_return_null=1" \
    run_ctest tsan -L fast -LE 'cuda|structure' || status=$?
  return "$status"
}

install_peers() {
  setup_begin
  install_packages "$@"
  install_wheels peers 8000 $PEER_PINS
  setup_end
}

full_launchers() {
  install_peers $SLURM_PACKAGES
  configure_and_build ci --target pentatron
  python3 "$ROOT/tests/launchers/launchers.py" "$ROOT/build/ci/pentatron" "$ROOT/.deps/peers/bin/python"
}

full_peers() {
  install_peers
  configure_and_build ci
  "$ROOT/.deps/peers/bin/python" "$ROOT/tests/peers/hf_models.py" "$ROOT/build/ci/pentatron"
  "$ROOT/.deps/peers/bin/python" "$ROOT/tests/peers/hf_export.py" "$ROOT/build/ci/pentatron"
  "$ROOT/.deps/peers/bin/python" "$ROOT/tests/peers/hf_tokenizer.py" "$ROOT/build/ci/pentatron"
  "$ROOT/.deps/peers/bin/python" "$ROOT/tests/peers/peft_adapters.py" "$ROOT/build/ci/pentatron"
  "$ROOT/.deps/peers/bin/python" "$ROOT/tests/peers/minilm.py" "$ROOT/build/ci/pentatron"
  "$ROOT/.deps/peers/bin/python" "$ROOT/tests/peers/trackers.py" "$ROOT/build/ci/pentatron"
}

full_parquet() {
  configure_and_build ci --target pentatron --target cli_test
  "$ROOT/scripts/parquet.sh"
  run_ctest ci -R '^cli_test[.]Parquet'
}

full_serve() {
  setup_begin
  install_packages $BROWSER_PACKAGES
  install_wheels serve 3000 $SERVE_PINS
  setup_smollm2
  setup_end
  configure_and_build ci --target pentatron
  local python="$ROOT/.deps/serve/bin/python" model
  model=$(cd "$ROOT/tests/serve/peers" && "$python" -c "import server; print(server.model_from('$ROOT/.deps/smollm2'))")
  "$python" "$ROOT/tests/serve/peers/serving.py" "$ROOT/build/ci/pentatron" "$model" "$ROOT/tests/data/evaluation"
  "$python" "$ROOT/tests/evaluation/smollm2.py" "$ROOT/build/ci/pentatron" "$model"
}

full_bundle() {
  setup_begin
  install_packages $BARE_PACKAGES
  free_or_fail "$DEPS" 8000 "a Debian 12 with torch"
  setup_end
  "$ROOT/scripts/bundle.sh"
  "$ROOT/scripts/wheel.sh"
  "$ROOT/tests/packaging/bare.sh" "$DEPS/bare" "$ROOT/build/bundle_out/pentatron-bundle.tar.xz" "$ROOT"/build/wheel/pentatron-*.whl
}

full_fuzz() {
  local program name seconds=${FUZZ_SECONDS:-60} corpus found=0
  setup_begin
  install_packages $FUZZ_PACKAGES
  setup_end
  configure_and_build fuzz --target fuzzers
  for program in "$ROOT"/build/fuzz/fuzzers/*_fuzz; do
    [ -x "$program" ] || continue
    found=1
    name=$(basename "$program")
    corpus="$ROOT/build/fuzz/corpus/$name"
    mkdir -p "$corpus"
    say "fuzzing $name for $seconds s"
    "$program" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 -verbosity=0 \
      -artifact_prefix="$ROOT/build/fuzz/" "$corpus" $(find "$ROOT/tests/data/fuzz/$name" -maxdepth 0 2>/dev/null)
  done
  if [ "$found" = 0 ]; then nothing_yet fuzz; fi
}

nothing_yet() {
  say "scripts/test.sh --full $1: there are no tests of this kind yet"
  exit 2
}

kinds=""
case "${1:-}" in
"") ;;
-h | --help)
  usage
  exit 0
  ;;
--full)
  kinds=${2:-matrix bugs examples faults launchers peers parquet serve bundle fuzz sanitize}
  case " matrix bugs examples faults launchers peers parquet serve bundle fuzz sanitize " in
  *" ${2:-fuzz} "*) ;;
  *) fail "--full $2: no such kind of test" "matrix, bugs, examples, faults, launchers, peers, parquet, serve, bundle, fuzz or sanitize" ;;
  esac
  ;;
*) fail "$1: no such option" "scripts/test.sh --help" ;;
esac

setup_begin
install_packages $BUILD_PACKAGES $TEST_PACKAGES
setup_torch
setup_test_python
setup_nvcc
setup_end
if [ -z "$kinds" ]; then
  default_tests
else
  for kind in $kinds; do "full_$kind"; done
fi
