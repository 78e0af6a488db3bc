#include "pentatron/trainer/metrics/hardware.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sched.h>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/control_group.h"
#include "pentatron/base/format.h"
#include "pentatron/trainer/metrics/train_log.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 12> kFeatures{
    "avx",         "avx2",        "fma",         "f16c",     "avx512f",  "avx512bw",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"};

std::string read_text(const fs::path& path) {
  std::ifstream in(path);
  std::string text;
  std::getline(in, text, '\0');
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<int64_t> read_number(const fs::path& path) {
  const std::string text = read_text(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  if (*end == 'K') return value << 10;
  if (*end == 'M') return value << 20;
  return value;
}

std::string after_colon(const std::string& line) {
  const size_t colon = line.find(':');
  const size_t start =
      colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
  return start == std::string::npos ? std::string() : line.substr(start);
}

void read_cpuinfo(const fs::path& root, Machine& machine) {
  std::ifstream in(root / "proc/cpuinfo");
  std::string line, socket = "0";
  std::set<std::string> sockets;
  std::set<std::pair<std::string, std::string>> cores;
  while (std::getline(in, line)) {
    if (line.starts_with("processor")) ++machine.processors;
    if (line.starts_with("model name")) machine.cpu_name = after_colon(line);
    if (line.starts_with("physical id")) sockets.insert(socket = after_colon(line));
    if (line.starts_with("core id")) cores.emplace(socket, after_colon(line));
    if (line.starts_with("flags") && machine.features.empty()) {
      std::istringstream words(after_colon(line));
      for (std::string word; words >> word;) {
        if (std::find(kFeatures.begin(), kFeatures.end(), word) != kFeatures.end())
          machine.features.push_back(word);
      }
    }
  }
  machine.sockets = static_cast<int64_t>(sockets.size());
  machine.cores = cores.empty() ? machine.processors : static_cast<int64_t>(cores.size());
}

void read_meminfo(const fs::path& root, Machine& machine) {
  std::ifstream in(root / "proc/meminfo");
  std::string key, unit;
  int64_t kib = 0, swap_free = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    words >> key >> kib;
    if (key == "MemTotal:") machine.memory_bytes = kib << 10;
    if (key == "MemAvailable:") machine.available_bytes = kib << 10;
    if (key == "SwapTotal:") machine.swap_bytes = kib << 10;
    if (key == "SwapFree:") swap_free = kib << 10;
  }
  machine.swap_used_bytes = machine.swap_bytes - swap_free;
}

void read_caches(const fs::path& root, Machine& machine) {
  for (int i = 0;; ++i) {
    const fs::path folder = root / "sys/devices/system/cpu/cpu0/cache" / fmt::format("index{}", i);
    const auto level = read_number(folder / "level");
    if (!level) return;
    Cache cache{.level = static_cast<int>(*level), .type = read_text(folder / "type")};
    cache.bytes = read_number(folder / "size").value_or(0);
    int64_t shared = 0;
    for (const char c : read_text(folder / "shared_cpu_map")) {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 0;
      shared += std::popcount(static_cast<unsigned>(digit));
    }
    cache.shared_by = std::max<int64_t>(shared, 1);
    machine.caches.push_back(cache);
  }
}

void read_limits(const fs::path& root, Machine& machine) {
  const ControlGroup group = read_control_group(root);
  machine.cpu_quota = group.cpu_quota;
  machine.memory_used_bytes = group.memory_used_bytes;
  if (!group.memory_limit_bytes) return;
  // A limit above the memory of the machine limits nothing.
  if (machine.memory_bytes == 0 || *group.memory_limit_bytes < machine.memory_bytes) {
    machine.memory_limit_bytes = group.memory_limit_bytes;
    machine.memory_limit_free_bytes = group.memory_free_bytes;
  }
}

/// "always [madvise] never" chooses madvise.
std::string chosen(const std::string& options) {
  const size_t open = options.find('['), close = options.find(']');
  return open == std::string::npos || close == std::string::npos
             ? options
             : options.substr(open + 1, close - open - 1);
}

int64_t count_nodes(const fs::path& root) {
  int64_t nodes = 0;
  while (fs::exists(root / "sys/devices/system/node" / fmt::format("node{}", nodes))) ++nodes;
  return nodes;
}

void check_processors(const Machine& machine, const Setting& setting, std::vector<Finding>& found) {
  const int64_t usable = processors_for_compute(machine.usable, machine.cpu_quota);
  const int64_t cores = machine.processors > 0
                            ? std::max<int64_t>(1, usable * machine.cores / machine.processors)
                            : usable;
  if (setting.threads > usable) {
    found.push_back(
        {fmt::format("{} compute threads share {}", setting.threads, counted(usable, "processor")),
         fmt::format("OMP_NUM_THREADS={}", cores)});
  } else if (setting.threads > 0 && setting.threads < cores) {
    found.push_back(
        {fmt::format("{} {} of the {} cores", counted(setting.threads, "compute thread"),
                     setting.threads == 1 ? "uses 1" : fmt::format("use {}", setting.threads),
                     cores),
         fmt::format("OMP_NUM_THREADS={}", cores)});
  }
  if (machine.cpu_quota && *machine.cpu_quota < static_cast<double>(machine.usable)) {
    found.push_back({fmt::format("the control group allows {:.1f} of {} processors",
                                 *machine.cpu_quota, machine.usable),
                     "raise the container's cpu limit"});
  } else if (machine.usable > 0 && machine.usable < machine.processors) {
    found.push_back(
        {fmt::format("this process may use {} of {} processors", machine.usable,
                     machine.processors),
         "start pentatron without taskset and without binding (mpirun --bind-to none)"});
  }
  if (machine.load > 0.5 * static_cast<double>(usable) + 0.5) {
    found.push_back({fmt::format("other programs use {:.1f} of {} processors", machine.load,
                                 machine.processors),
                     "stop the other programs, or expect timings to vary"});
  }
  if (!machine.governor.empty() && machine.governor != "performance" &&
      machine.governor != "schedutil") {
    found.push_back({fmt::format("the frequency governor is {}", machine.governor),
                     "cpupower frequency-set -g performance"});
  }
}

void check_features(const Machine& machine, const Setting& setting, std::vector<Finding>& found) {
  if (setting.has_gpu || machine.features.empty()) return;
  if (!machine.has("avx2") || !machine.has("fma")) {
    found.push_back({"the processor has no AVX2 with FMA, so most kernels run as scalar code",
                     "a processor from 2013 or later"});
  } else if (!machine.has("avx512f")) {
    found.push_back({"the processor has no AVX-512, so kernels use 256-bit vectors",
                     "a processor with AVX-512"});
  }
  if (!machine.has("amx_bf16") && !machine.has("avx512_bf16")) {
    found.push_back({"the processor multiplies bf16 no faster than fp32",
                     "dtype=fp32 on this machine; bf16 saves memory only"});
  }
}

void check_memory(const Machine& machine, const Setting& setting, std::vector<Finding>& found) {
  constexpr double kGb = 1e9;
  if (machine.memory_limit_bytes) {
    found.push_back({fmt::format("the control group allows {} of {} of memory",
                                 bytes_text(static_cast<double>(*machine.memory_limit_bytes)),
                                 bytes_text(static_cast<double>(machine.memory_bytes))),
                     "raise the container's memory limit if a run does not fit"});
  }
  if (machine.swap_used_bytes > int64_t{64} << 20) {
    found.push_back({fmt::format("{} of swap is in use",
                                 bytes_text(static_cast<double>(machine.swap_used_bytes))),
                     "stop programs that use much memory: swapping makes a run much slower"});
  }
  if (machine.memory_bytes > 0 && static_cast<double>(machine.available_bytes) < 2 * kGb) {
    found.push_back({fmt::format("only {} of memory is free",
                                 bytes_text(static_cast<double>(machine.available_bytes))),
                     "a smaller model or micro_batch_size, or recomputation"});
  }
  if (machine.huge_pages == "never") {
    found.push_back({"transparent huge pages are turned off",
                     "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
  }
  if (machine.numa_nodes > 1) {
    found.push_back({fmt::format("this machine has {} NUMA nodes", machine.numa_nodes),
                     "start one rank per node with numactl --cpunodebind"});
  }
  std::error_code error;
  const fs::space_info space = fs::space(setting.folder, error);
  if (!error && static_cast<double>(space.available) < 5 * kGb) {
    found.push_back(
        {fmt::format("only {} is free on the disk of {}",
                     bytes_text(static_cast<double>(space.available)), setting.folder.string()),
         "a folder on another disk for checkpoint.save, or fewer checkpoints (checkpoint.keep)"});
  }
}

} // namespace

bool Machine::has(const std::string& feature) const {
  return std::find(features.begin(), features.end(), feature) != features.end();
}

Machine read_machine(const fs::path& root) {
  Machine machine;
  read_cpuinfo(root, machine);
  read_meminfo(root, machine);
  read_caches(root, machine);
  read_limits(root, machine);
  machine.governor = read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  machine.huge_pages = chosen(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  machine.numa_nodes = count_nodes(root);
  std::istringstream(read_text(root / "proc/loadavg")) >> machine.load;
  cpu_set_t set;
  CPU_ZERO(&set);
  machine.usable = sched_getaffinity(0, sizeof(set), &set) == 0
                       ? CPU_COUNT(&set)
                       : static_cast<int64_t>(std::thread::hardware_concurrency());
  std::error_code error;
  const fs::space_info space = fs::space(root / "dev/shm", error);
  if (!error) machine.shared_memory_bytes = static_cast<int64_t>(space.available);
  return machine;
}

int64_t processors_for_compute(int64_t usable, std::optional<double> cpu_quota) {
  const int64_t quota = cpu_quota ? std::llround(*cpu_quota) : usable;
  return std::max<int64_t>(1, std::min(usable, quota));
}

std::optional<int64_t> free_memory_bytes(const Machine& machine) {
  if (machine.available_bytes <= 0) return std::nullopt;
  int64_t bytes = machine.available_bytes + machine.swap_bytes - machine.swap_used_bytes;
  if (machine.memory_limit_free_bytes) bytes = std::min(bytes, *machine.memory_limit_free_bytes);
  return std::max<int64_t>(bytes, 0);
}

bool is_release_build() {
#ifdef __OPTIMIZE__
  return true;
#else
  return false;
#endif
}

std::vector<Finding> find_slowdowns(const Machine& machine, const Setting& setting) {
  std::vector<Finding> found;
  if (!setting.release_build) {
    found.push_back({"this program was built without optimization", "cmake --preset release"});
  }
  if (setting.has_gpu && !setting.cuda_build) {
    found.push_back(
        {"this machine has a GPU, but this program was built without CUDA", "cmake --preset cuda"});
  }
  check_processors(machine, setting, found);
  check_memory(machine, setting, found);
  check_features(machine, setting, found);
  return found;
}

std::string describe(const Machine& machine) {
  std::string text;
  const auto row = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) text += fmt::format("{:<12} {}\n", name, value);
  };
  row("cpu", machine.cpu_name);
  row("processors",
      fmt::format("{}, {}, {} usable here{}", counted(machine.cores, "core"),
                  counted(machine.processors, "thread"), machine.usable,
                  machine.cpu_quota ? fmt::format(", limit {:.1f}", *machine.cpu_quota) : ""));
  row("features", fmt::format("{}", fmt::join(machine.features, " ")));
  std::vector<std::string> caches;
  for (const Cache& cache : machine.caches) {
    if (cache.type != "Instruction")
      caches.push_back(
          fmt::format("L{} {}", cache.level, bytes_text(static_cast<double>(cache.bytes))));
  }
  row("caches", fmt::format("{}", fmt::join(caches, ", ")));
  row("memory",
      fmt::format("{}, {} available{}", bytes_text(static_cast<double>(machine.memory_bytes)),
                  bytes_text(static_cast<double>(machine.available_bytes)),
                  machine.memory_limit_bytes
                      ? ", limit " + bytes_text(static_cast<double>(*machine.memory_limit_bytes))
                      : ""));
  row("swap", machine.swap_bytes > 0 ? bytes_text(static_cast<double>(machine.swap_bytes)) : "");
  row("governor", machine.governor);
  row("huge pages", machine.huge_pages);
  return text;
}

} // namespace pentatron::trainer
