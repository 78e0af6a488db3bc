/// The file that lists every line, element and file that preprocessing left out, with its reason:
/// one JSON object a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "pentatron/data/input_report.h"

namespace pentatron::data {

/// Grows in a folder, like the tokens of a corpus, and appears under its name at the end.
class SkipList {
 public:
  SkipList(std::filesystem::path target, std::filesystem::path folder);
  ~SkipList();
  SkipList(const SkipList&) = delete;
  SkipList& operator=(const SkipList&) = delete;

  /// Continues after the first `bytes` bytes of what an earlier call wrote.
  void open(int64_t bytes);
  void add(const std::vector<SkippedInput>& skips);
  /// Makes it durable.
  void sync();
  int64_t bytes() const { return bytes_; }
  /// Gives the list its name; with `empty`, a list of an earlier call is removed. May be repeated.
  void commit(bool empty);
  const std::filesystem::path& target() const { return target_; }

 private:
  std::filesystem::path target_, growing_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

} // namespace pentatron::data
