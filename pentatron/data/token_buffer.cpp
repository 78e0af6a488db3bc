#include "pentatron/data/token_buffer.h"

#include <algorithm>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

template <class T> void narrow(std::span<const int32_t> tokens, void* data, int64_t at) {
  T* out = static_cast<T*>(data) + at;
  for (size_t i = 0; i < tokens.size(); ++i) out[i] = static_cast<T>(tokens[i]);
}

template <class T> void widen(const void* data, int64_t begin, int64_t count, int64_t* out) {
  const T* in = static_cast<const T*>(data) + begin;
  for (int64_t i = 0; i < count; ++i) out[i] = in[i];
}

} // namespace

void TokenBuffer::set_capacity(int64_t tokens) {
  void* moved =
      std::realloc(data_.get(), static_cast<size_t>(std::max<int64_t>(tokens, 1) * width_));
  if (moved == nullptr)
    raise<DataError>("not enough memory for {} tokens ({} bytes)", tokens, tokens * width_);
  static_cast<void>(data_.release());
  data_.reset(moved);
  capacity_ = tokens;
}

void TokenBuffer::reserve(int64_t tokens) {
  if (tokens > capacity_) set_capacity(tokens);
}

void TokenBuffer::shrink_to_fit() {
  if (capacity_ > size_) set_capacity(size_);
}

void TokenBuffer::append(std::span<const int32_t> tokens) {
  const int64_t needed = size_ + static_cast<int64_t>(tokens.size());
  if (needed > capacity_)
    set_capacity(std::max({needed, capacity_ + capacity_ / 2, int64_t{1024}}));
  if (width_ == 2) {
    narrow<uint16_t>(tokens, data_.get(), size_);
  } else {
    narrow<int32_t>(tokens, data_.get(), size_);
  }
  size_ = needed;
}

void TokenBuffer::copy(int64_t begin, int64_t count, int64_t* out) const {
  PT_DCHECK(begin >= 0 && count >= 0 && begin + count <= size_);
  if (width_ == 2) {
    widen<uint16_t>(data_.get(), begin, count, out);
  } else {
    widen<int32_t>(data_.get(), begin, count, out);
  }
}

} // namespace pentatron::data
