/// A file of named parts whose positions are known before their bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "pentatron/base/atomic_file.h"

namespace pentatron {

/// The bytes arrive in any order and in pieces. The file appears at finish() or not at all.
class PartsFile {
 public:
  explicit PartsFile(const std::filesystem::path& target) : file_(target) {}

  /// Announces `size` bytes at `begin`, counted from the end of the head; false: again.
  bool add(std::string name, uint64_t begin, uint64_t size);
  /// What goes before every part, and how many bytes follow it; once. Gaps become zeros.
  void write_head(std::string_view head, uint64_t bytes_after);
  /// Bytes of a part, from byte `offset` of it on. Throws Error if they do not fit.
  void write(std::string_view name, std::span<const std::byte> bytes, uint64_t offset);
  /// Throws Error if the bytes of some part were not written.
  void finish();

 private:
  struct Part {
    uint64_t begin = 0, size = 0, written = 0;
  };
  std::map<std::string, Part, std::less<>> parts_;
  uint64_t head_ = 0;
  AtomicFile file_;
};

} // namespace pentatron
