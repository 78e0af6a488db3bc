#include "pentatron/base/control_group.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/text.h"

namespace pentatron {

namespace {

namespace fs = std::filesystem;

/// Version 1 writes "no limit" as a number near 2^63.
constexpr int64_t kNoLimit = int64_t{1} << 60;

/// The first word of a file as a number; none for "max".
std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

/// The lines "key number" of a file.
using Entries = std::map<std::string, int64_t>;

Entries entries_of(const fs::path& file) {
  Entries entries;
  std::ifstream in(file);
  std::string key;
  for (int64_t value = 0; in >> key >> value;) entries.emplace(key, value);
  return entries;
}

/// The number of the first of `keys` that is there.
std::optional<int64_t> entry_in(const Entries& entries, std::initializer_list<const char*> keys) {
  for (const char* const wanted : keys)
    if (const auto found = entries.find(wanted); found != entries.end()) return found->second;
  return std::nullopt;
}

/// Swap space of the machine that is free.
int64_t free_swap(const fs::path& root) {
  std::ifstream in(root / "proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t kilobytes = 0;
    if (words >> key >> kilobytes && key == "SwapFree:") return kilobytes * 1024;
  }
  return 0;
}

/// The path of this process in the hierarchy of a controller of version 1; "": of version 2.
std::string path_in(const fs::path& root, std::string_view controller) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) { // "4:cpu,cpuacct:/path", "0::/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::vector<std::string_view> names =
        split(std::string_view(line).substr(first + 1, second - first - 1), ',');
    if (std::ranges::find(names, controller) != names.end()) return line.substr(second + 1);
  }
  return "/";
}

/// The folders of the group and of those around it, the innermost first.
std::vector<fs::path> levels(const fs::path& mount, const std::string& path) {
  fs::path own = fs::path(path).relative_path();
  if (std::ranges::find(own, "..") != own.end()) own.clear(); // outside of what is mounted
  // The mount of a container may begin at its own group, and the path at that of the machine.
  std::error_code error;
  while (!own.empty() && !fs::is_directory(mount / own, error)) {
    fs::path rest;
    for (auto part = std::next(own.begin()); part != own.end(); ++part) rest /= *part;
    own = rest;
  }
  std::vector<fs::path> result;
  for (; !own.empty(); own = own.parent_path()) result.push_back(mount / own);
  result.push_back(mount);
  return result;
}

std::vector<fs::path> levels_of_version_2(const fs::path& root) {
  const std::string path = path_in(root, "");
  std::vector<fs::path> all = levels(root / "sys/fs/cgroup", path);
  const std::vector<fs::path> hybrid = levels(root / "sys/fs/cgroup/unified", path);
  all.insert(all.end(), hybrid.begin(), hybrid.end());
  return all;
}

std::vector<fs::path> levels_of_version_1(const fs::path& root, const char* controller) {
  return levels(root / "sys/fs/cgroup" / controller, path_in(root, controller));
}

void limit_processors(ControlGroup& group, double quota, double period) {
  if (quota <= 0 || period <= 0) return;
  group.cpu_quota = std::min(group.cpu_quota.value_or(quota / period), quota / period);
}

struct MemoryOfGroup {
  std::optional<int64_t> limit;
  std::optional<int64_t> with_files;       ///< what is used
  std::optional<int64_t> inactive, active; ///< files
  int64_t kernel = 0;                      ///< of the kernel, which may give it back
  int64_t swap = 0;                        ///< that may still be used
};

bool limits(std::optional<int64_t> limit) {
  return limit && *limit > 0 && *limit < kNoLimit;
}

void limit_memory(ControlGroup& group, const MemoryOfGroup& of) {
  if (!limits(of.limit)) return;
  const int64_t files = of.inactive.value_or(0) + of.active.value_or(0);
  const int64_t used = std::max<int64_t>(of.with_files.value_or(0) - files, 0);
  const int64_t free = std::max<int64_t>(*of.limit - used, 0);
  group.memory_free_bytes = std::min(group.memory_free_bytes.value_or(free), free);
  if (of.with_files && of.inactive) {
    const int64_t room =
        std::max<int64_t>(*of.limit - std::max<int64_t>(used - of.kernel, 0), 0) + of.swap;
    group.memory_room_bytes = std::min(group.memory_room_bytes.value_or(room), room);
  }
  if (group.memory_limit_bytes && *group.memory_limit_bytes <= *of.limit) return;
  group.memory_limit_bytes = of.limit;
  group.memory_used_bytes = used;
}

void limit_memory_of_version_2(ControlGroup& group, const fs::path& level, int64_t most_swap) {
  MemoryOfGroup of;
  of.limit = number_in(level / "memory.max");
  if (!limits(of.limit)) return;
  // Read before the files: those that are read meanwhile then make the room larger, not smaller.
  of.with_files = number_in(level / "memory.current");
  const Entries stat = entries_of(level / "memory.stat");
  of.inactive = entry_in(stat, {"inactive_file"});
  of.active = entry_in(stat, {"active_file"});
  of.kernel = entry_in(stat, {"slab_reclaimable"}).value_or(0);
  of.swap = most_swap;
  if (const auto most = number_in(level / "memory.swap.max"))
    of.swap = std::clamp<int64_t>(*most - number_in(level / "memory.swap.current").value_or(0), 0,
                                  most_swap);
  limit_memory(group, of);
}

void limit_memory_of_version_1(ControlGroup& group, const fs::path& level, int64_t most_swap) {
  MemoryOfGroup of;
  of.with_files = number_in(level / "memory.usage_in_bytes");
  // The "total" of version 1 counts the groups inside, too, as its usage does; a limit of a group
  // around it may be one that cannot be seen here.
  const Entries stat = entries_of(level / "memory.stat");
  const auto own = number_in(level / "memory.limit_in_bytes"),
             around = entry_in(stat, {"hierarchical_memory_limit"});
  of.limit = own && around ? std::min(own, around) : own ? own : around;
  if (!limits(of.limit)) return;
  of.inactive = entry_in(stat, {"total_inactive_file", "inactive_file"});
  of.active = entry_in(stat, {"total_active_file", "active_file"});
  of.kernel = number_in(level / "memory.kmem.usage_in_bytes").value_or(0);
  of.swap = most_swap;
  const auto both = number_in(level / "memory.memsw.limit_in_bytes"),
             of_both = number_in(level / "memory.memsw.usage_in_bytes");
  if (limits(both) && of_both && of.with_files)
    of.swap = std::clamp<int64_t>((*both - *of_both) - (*of.limit - *of.with_files), 0, most_swap);
  limit_memory(group, of);
}

} // namespace

ControlGroup read_control_group(const fs::path& root) {
  ControlGroup group;
  const int64_t swap = free_swap(root);
  for (const fs::path& level : levels_of_version_2(root)) {
    double quota = 0, period = 0;
    if (std::ifstream(level / "cpu.max") >> quota >> period) limit_processors(group, quota, period);
    limit_memory_of_version_2(group, level, swap);
  }
  for (const fs::path& level : levels_of_version_1(root, "cpu"))
    if (const auto quota = number_in(level / "cpu.cfs_quota_us"))
      limit_processors(
          group, static_cast<double>(*quota),
          static_cast<double>(number_in(level / "cpu.cfs_period_us").value_or(100'000)));
  for (const fs::path& level : levels_of_version_1(root, "memory"))
    limit_memory_of_version_1(group, level, swap);
  return group;
}

std::optional<int64_t> count_memory_kills(const fs::path& root) {
  // The outermost group counts other tasks of the job, too, which Slurm puts into groups of their
  // own.
  const std::vector<fs::path> all = levels_of_version_2(root);
  for (auto level = all.rbegin(); level != all.rend(); ++level)
    if (const auto kills = entry_in(entries_of(*level / "memory.events"), {"oom_kill"}))
      return kills;
  for (const fs::path& level : levels_of_version_1(root, "memory"))
    if (const auto kills = entry_in(entries_of(level / "memory.oom_control"), {"oom_kill"}))
      return kills;
  return entry_in(entries_of(root / "proc/vmstat"), {"oom_kill"});
}

} // namespace pentatron
