/// A growing array of token ids in 16 bits where the vocabulary allows, else in 32.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace pentatron::data {

class TokenBuffer {
 public:
  explicit TokenBuffer(int64_t vocab_size) : width_(vocab_size <= 65536 ? 2 : 4) {}

  int64_t size() const { return size_; }
  int64_t bytes_per_token() const { return width_; }
  int64_t memory_bytes() const { return capacity_ * width_; }

  void reserve(int64_t tokens);
  void append(std::span<const int32_t> tokens);
  void push_back(int32_t token) { append({&token, 1}); }
  /// Forgets all but the first `size` tokens.
  void truncate(int64_t size) { size_ = size < size_ ? size : size_; }
  void shrink_to_fit();

  /// Writes tokens [begin, begin + count) to `out`.
  void copy(int64_t begin, int64_t count, int64_t* out) const;

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  void set_capacity(int64_t tokens);

  int64_t width_;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
  std::unique_ptr<void, Free> data_; // realloc moves pages of large arrays instead of copying them
};

} // namespace pentatron::data
