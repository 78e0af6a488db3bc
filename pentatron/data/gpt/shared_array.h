/// A constant array that several owners hold: made in memory, or lying in a mapped file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace pentatron::data {

/// A value: copies share the elements, which live as long as one of them.
template <class T> class SharedArray {
 public:
  using value_type = T;
  using const_iterator = const T*;

  SharedArray() = default;
  /*implicit*/ SharedArray(std::vector<T> values) {
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    values_ = *owner;
    owner_ = std::move(owner);
  }
  /// `values` are valid while `owner` lives.
  SharedArray(std::shared_ptr<const void> owner, std::span<const T> values)
      : owner_(std::move(owner)), values_(values) {}

  size_t size() const { return values_.size(); }
  const T& operator[](size_t i) const { return values_[i]; }
  const T* begin() const { return values_.data(); }
  const T* end() const { return values_.data() + values_.size(); }
  std::span<const T> span() const { return values_; }
  friend bool operator==(const SharedArray& a, const SharedArray& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const T> values_;
};

} // namespace pentatron::data
