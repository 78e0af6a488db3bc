#include "pentatron/cli/files/torch_place.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::cli {

namespace {

namespace fs = std::filesystem;

std::string variable_of_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool leads_somewhere(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_torch(const fs::path& folder) {
  return leads_somewhere(folder / "lib/libtorch_cpu.so");
}

/// The entries of a folder, sorted; empty if it cannot be read.
std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error))
    found.push_back(i->path());
  std::sort(found.begin(), found.end());
  return found;
}

/// The torch that the Python environment in a folder would import.
std::optional<fs::path> torch_of_environment(const fs::path& environment_folder) {
  for (const fs::path& python : entries(environment_folder / "lib"))
    if (python.filename().string().starts_with("python3"))
      for (const char* packages : {"site-packages", "dist-packages"})
        if (const fs::path torch = python / packages / "torch"; is_torch(torch)) return torch;
  return std::nullopt;
}

/// The torch of the first python3 in PATH: in its environment, or among the packages of the user
/// or of the machine. Python is not started.
std::optional<fs::path> torch_of_python() {
  const std::string path = variable_of_environment("PATH"), home = variable_of_environment("HOME");
  for (const std::string_view folder : pentatron::split(path, ':')) {
    const fs::path python = fs::path(folder) / "python3";
    if (!leads_somewhere(python)) continue;
    std::error_code error;
    const fs::path real = fs::canonical(python, error);
    for (const fs::path& place : {fs::path(folder).parent_path(), fs::path(home) / ".local",
                                  real.parent_path().parent_path(), fs::path("/usr/local")})
      if (auto torch = torch_of_environment(place)) return torch;
    return std::nullopt;
  }
  return std::nullopt;
}

/// What a torch says about itself: "2.11.0+cu130" of `__version__`, "13.0" of `cuda`; empty if it
/// does not.
std::string stated_by(const fs::path& torch, std::string_view name) {
  std::ifstream file(torch / "version.py");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name)) {
      const size_t begin = line.find_first_of("'\""), end = line.find_last_of("'\"");
      if (begin < end) return line.substr(begin + 1, end - begin - 1);
    }
  return "";
}

/// The first line of a file of the bundle; empty if there is none.
std::string needed_by(const fs::path& program_folder, const char* name) {
  std::ifstream file(program_folder / "../share/pentatron" / name);
  std::string line;
  std::getline(file, line);
  return line;
}

fs::path find_torch(const fs::path& program_folder, const std::string& needed) {
  if (const std::string root = variable_of_environment("TORCH_ROOT"); !root.empty()) {
    if (is_torch(root)) return root;
    raise<Error>("TORCH_ROOT={} has no lib/libtorch_cpu.so\n  try: unset TORCH_ROOT, or set it to "
                 "the folder torch of a Python environment",
                 root);
  }
  // site-packages/pentatron/bin and site-packages/torch
  const fs::path sibling = (program_folder / "../../torch").lexically_normal();
  if (is_torch(sibling)) return sibling;
  if (const std::string active = variable_of_environment("VIRTUAL_ENV"); !active.empty())
    if (const auto torch = torch_of_environment(active)) return *torch;
  if (const auto torch = torch_of_python()) return *torch;
  raise<Error>("there is no torch in TORCH_ROOT, in the active environment or in python3, but this "
               "command needs torch {}\n  try: pip install 'torch=={}.*'",
               needed, needed);
}

} // namespace

bool gpu_visible() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr && (*visible == '\0' || std::string_view(visible) == "-1")) return false;
  return leads_somewhere("/dev/nvidiactl") ||
         leads_somewhere("/dev/dxg"); // the second under Windows' Linux
}

std::optional<fs::path> torch_to_load(const fs::path& program_folder) {
  const std::string needed = needed_by(program_folder, "torch_version");
  if (needed.empty()) return std::nullopt;
  const fs::path torch = find_torch(program_folder, needed);
  const std::string found = stated_by(torch, "__version__");
  if (!found.starts_with(needed + "."))
    raise<Error>(
        "the torch in {} is {}, but this command needs torch {}\n  try: pip install 'torch=={}.*'",
        torch.string(), found.empty() ? "of unknown version" : found, needed, needed);
  return torch;
}

std::string library_path(const fs::path& torch) {
  std::string path = (torch / "lib").string();
  for (const fs::path& package : entries(torch.parent_path() / "nvidia"))
    if (leads_somewhere(package / "lib")) path += ":" + (package / "lib").string();
  const std::string before = variable_of_environment("LD_LIBRARY_PATH");
  return before.empty() ? path : path + ":" + before;
}

fs::path torch_program(const fs::path& program_folder, const std::optional<fs::path>& torch,
                       bool gpu) {
  const fs::path with_cuda = program_folder / "pentatron-torch-cuda";
  const bool torch_has_cuda = !torch || leads_somewhere(*torch / "lib/libtorch_cuda.so");
  if (!gpu || !torch_has_cuda || !leads_somewhere(with_cuda))
    return program_folder / "pentatron-torch";
  const std::string needed = needed_by(program_folder, "cuda_version"),
                    found = torch ? stated_by(*torch, "cuda") : "";
  if (!needed.empty() && !found.empty() && !found.starts_with(needed + "."))
    raise<Error>("the torch in {} is made for CUDA {}, but this program needs one for CUDA {}\n  "
                 "try: a torch for CUDA {}, as pip install torch brings it, or "
                 "CUDA_VISIBLE_DEVICES=-1 to compute on the CPU",
                 torch->string(), found, needed, needed);
  return with_cuda;
}

} // namespace pentatron::cli
