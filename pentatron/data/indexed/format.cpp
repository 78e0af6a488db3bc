#include "pentatron/data/indexed/format.h"

#include <limits>

namespace pentatron::data {

namespace {

struct Properties {
  int64_t bytes;
  std::string_view name;
  std::array<int64_t, 2> range;
};

template <class T> constexpr std::array<int64_t, 2> range() {
  return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

constexpr std::array<Properties, 8> kProperties{{{1, "u8", range<uint8_t>()},
                                                 {1, "i8", range<int8_t>()},
                                                 {2, "i16", range<int16_t>()},
                                                 {4, "i32", range<int32_t>()},
                                                 {8, "i64", range<int64_t>()},
                                                 {8, "f64", {0, -1}},
                                                 {4, "f32", {0, -1}},
                                                 {2, "u16", range<uint16_t>()}}};

const Properties& of(IndexedDtype dtype) {
  return kProperties[static_cast<size_t>(dtype) - 1];
}

} // namespace

std::optional<IndexedDtype> dtype_of_code(uint8_t code) {
  if (code < 1 || code > kProperties.size()) return std::nullopt;
  return static_cast<IndexedDtype>(code);
}

int64_t item_bytes(IndexedDtype dtype) {
  return of(dtype).bytes;
}

std::string_view name_of(IndexedDtype dtype) {
  return of(dtype).name;
}

bool is_integer(IndexedDtype dtype) {
  return dtype != IndexedDtype::kF64 && dtype != IndexedDtype::kF32;
}

std::array<int64_t, 2> token_range(IndexedDtype dtype) {
  return of(dtype).range;
}

IndexedDtype dtype_for_vocabulary(int64_t vocab_size) {
  return vocab_size < 65500 ? IndexedDtype::kU16 : IndexedDtype::kI32;
}

} // namespace pentatron::data
