/// Control groups from files, for the allocator.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "pentatron/nn/memory/memory_room.h"
#include "tests/support/files.h"

namespace pentatron::test {

/// While it lives, this process is in a control group of version 2 that has no limit at first.
class MemoryLimit {
 public:
  MemoryLimit() {
    std::filesystem::create_directories(group_);
    std::filesystem::create_directories(root_.path() / "proc/self");
    write(root_.path() / "proc/self/cgroup", "0::/job");
    write(group_ / "memory.max", "max");
  }
  ~MemoryLimit() { nn::watch_memory_room(); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  /// The files say so; the allocator sees it when it looks.
  void set(int64_t limit, int64_t used, int64_t files = 0) const {
    write(group_ / "memory.max", std::to_string(limit));
    write(group_ / "memory.current", std::to_string(used));
    write(group_ / "memory.stat", "inactive_file " + std::to_string(files) + "\nactive_file 0");
  }
  /// As at the start of a program.
  void watch() const { nn::watch_memory_room(root_.path()); }

 private:
  static void write(const std::filesystem::path& file, const std::string& text) {
    std::ofstream(file) << text << '\n';
  }

  const TemporaryFolder root_;
  const std::filesystem::path group_ = root_.path() / "sys/fs/cgroup/job";
};

} // namespace pentatron::test
