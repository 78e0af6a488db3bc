// The verbs on files run here; for the others this process becomes pentatron-torch or, beside a
// GPU, pentatron-torch-cuda, which lie beside this program and load LibTorch.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "pentatron/cli/files/exit_status.h"
#include "pentatron/cli/files/torch_place.h"
#include "pentatron/cli/files/verbs.h"

namespace {

bool works_on_files(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "", command = argc > 2 ? argv[2] : "";
  for (const pentatron::cli::Verb& one : pentatron::cli::file_verbs())
    if (one.name == verb)
      return one.commands.empty() ||
             std::find(one.commands.begin(), one.commands.end(), command) != one.commands.end();
  return false;
}

/// How LibTorch's OpenMP threads wait for work. They spin for this many rounds (some microseconds)
/// and then sleep, so that they give their processor to other programs and to other ranks. The
/// library reads it when it is loaded, hence here; what the user has set stays. Measurements:
/// docs/performance.md.
void set_waiting() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", "10000", 0);
}

/// The C library keeps memory that was freed: by default it returns blocks of some size to the
/// system, and each step has them cleared again page by page. It reads these when it is loaded;
/// what the user has set stays. 32 MiB is the largest threshold that it takes (it ignores others);
/// large tensors have memory of their own (nn/memory/large_blocks.h).
void keep_freed_memory() {
  ::setenv("MALLOC_MMAP_THRESHOLD_", "33554432", 0);
  ::setenv("MALLOC_TRIM_THRESHOLD_", "8589934592", 0);
}

/// Where standard input or output is closed, the next file that is opened would get its number, and
/// be read or written in its place. So /dev/null takes the number, opened the wrong way round: use
/// of it still fails.
void keep_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) // the lowest that is free is this one
        [[maybe_unused]]
      const int opened = ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

} // namespace

int main(int argc, char** argv) {
  keep_standard_descriptors();
  if (works_on_files(argc, argv))
    return pentatron::cli::run_program(argc, argv, pentatron::cli::file_verbs());
  set_waiting();
  keep_freed_memory();
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::filesystem::path other;
  try {
    const auto torch = pentatron::cli::torch_to_load(folder);
    if (torch) ::setenv("LD_LIBRARY_PATH", pentatron::cli::library_path(*torch).c_str(), 1);
    other = pentatron::cli::torch_program(folder, torch, pentatron::cli::gpu_visible());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "error: %s\n", failure.what());
    return pentatron::cli::kExitFailure;
  }
  ::execve(other.c_str(), argv, environ);
  std::fprintf(stderr,
               "error: cannot start %s: %s\n  try: cmake --install, which puts it into the folder "
               "of pentatron\n",
               other.c_str(), std::strerror(errno));
  return pentatron::cli::kExitFailure;
}
