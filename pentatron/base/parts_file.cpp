#include "pentatron/base/parts_file.h"

#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron {

bool PartsFile::add(std::string name, uint64_t begin, uint64_t size) {
  return parts_.emplace(std::move(name), Part{.begin = begin, .size = size}).second;
}

void PartsFile::write_head(std::string_view head, uint64_t bytes_after) {
  head_ = head.size();
  file_.write(head);
  if (bytes_after == 0) return;
  const std::byte last{0};
  file_.write_at(head_ + bytes_after - 1, {&last, 1});
}

void PartsFile::write(std::string_view name, std::span<const std::byte> bytes, uint64_t offset) {
  const auto it = parts_.find(name);
  if (it == parts_.end()) raise<Error>("tensor '{}' was not declared", excerpt(name));
  Part& part = it->second;
  if (offset > part.size || bytes.size() > part.size - offset)
    raise<Error>("tensor '{}' has {} bytes, but {} were written from byte {} on", excerpt(name),
                 part.size, bytes.size(), offset);
  file_.write_at(head_ + part.begin + offset, bytes);
  part.written += bytes.size();
}

void PartsFile::finish() {
  for (const auto& [name, part] : parts_)
    if (part.written != part.size)
      raise<Error>("only {1} of the {2} bytes of tensor '{0}' were written", excerpt(name),
                   part.written, part.size);
  file_.commit();
}

} // namespace pentatron
