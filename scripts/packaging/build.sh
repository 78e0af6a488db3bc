# Sourced by bundle.sh and wheel.sh: the build folder whose programs they pack.

# The tests that gpu_check.sh --bundle runs.
readonly GPU_TESTS=(kernels_gpu_test layers_test trainer_test)

# The models of tests/data whose values it compares.
readonly CHECK_MODELS="gpt2 llama qwen3 mixtral qwen3_moe deepseek_v3 gpt_oss gemma2 mistral_sliding_window bert t5"

# read_packaging_options [--help] [--build FOLDER] [--out FOLDER]: sets BUILD and OUT, or shows the beginning of the script.
read_packaging_options() {
  BUILD=""
  OUT=""
  while [ $# -gt 0 ]; do
    case "$1" in
    -h | --help)
      sed -n '2,/^set /s/^# \{0,1\}//p; 2,/^set /s/^#$//p' "$0"
      exit 0
      ;;
    --build | --out)
      [ -n "${2:-}" ] || fail "$1 needs a folder" "$0 $1 FOLDER"
      if [ "$1" = --build ]; then BUILD=$2; else OUT=$2; fi
      shift 2
      ;;
    *) fail "$1: no such option" "$0 --help" ;;
    esac
  done
  if [ -n "$BUILD" ] && [ ! -x "$BUILD/pentatron-torch" ]; then
    fail "--build $BUILD contains no program pentatron-torch" "cmake --build $BUILD --target pentatron"
  fi
}

# build_for_packaging <target...>: builds the preset `bundle` unless --build named a folder; sets BUILD.
build_for_packaging() {
  local target targets=(--target pentatron)
  if [ -n "$BUILD" ]; then return; fi
  for target in "$@"; do targets+=(--target "$target"); done
  setup_begin
  install_packages $BUILD_PACKAGES $TEST_PACKAGES
  setup_torch
  setup_nvcc
  setup_end
  configure_and_build bundle "${targets[@]}"
  BUILD="$ROOT/build/bundle"
}
