/// A buffer over a stream: data that was read but not yet used, with room for more.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "pentatron/data/byte_source.h"

namespace pentatron::data {

class ReadBuffer {
 public:
  /// `source` must outlive the buffer; `bytes` are held from the start.
  ReadBuffer(ByteSource& source, size_t bytes)
      : source_(&source), bytes_(std::max<size_t>(bytes, 1)) {}

  /// What was read and not used yet; valid until fill().
  std::string_view held() const { return {bytes_.data() + begin_, end_ - begin_}; }
  void use(size_t n) { begin_ += n; }

  /// Reads more behind what is held, into twice the room if that is full. False at the end. Throws
  /// what the source throws.
  bool fill() {
    if (begin_ > 0) {
      std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    if (end_ == bytes_.size()) bytes_.resize(2 * bytes_.size());
    const size_t n = source_->read(bytes_.data() + end_, bytes_.size() - end_);
    end_ += n;
    return n > 0;
  }

  size_t memory_bytes() const { return bytes_.size(); }

 private:
  ByteSource* source_;
  std::vector<char> bytes_;
  size_t begin_ = 0; // of what is held
  size_t end_ = 0;
};

} // namespace pentatron::data
