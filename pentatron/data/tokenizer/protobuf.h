/// The wire format of Protocol Buffers, as much as one message of known fields needs.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "pentatron/base/error.h"

namespace pentatron::data::tokenizer {

/// Reads the fields of one message in order. Everything is checked against the bytes that are
/// there; throws DataError for what is cut off or of no known kind.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : bytes_(bytes) {}

  /// The next field; false at the end.
  bool next() {
    if (bytes_.empty()) return false;
    const uint64_t tag = varint();
    field_ = tag >> 3;
    value_ = 0;
    text_ = {};
    switch (tag & 7) {
    case 0:
      value_ = varint();
      break;
    case 1:
      text_ = take(8);
      break;
    case 2:
      text_ = take(varint());
      break;
    case 5:
      text_ = take(4);
      break;
    default:
      raise<DataError>("a field has the wire type {}, which is not known", tag & 7);
    }
    kind_ = static_cast<int>(tag & 7);
    return true;
  }

  uint64_t field() const { return field_; }
  /// The field's value, if it is of that kind; else DataError.
  uint64_t number() const {
    expect(0);
    return value_;
  }
  bool boolean() const { return number() != 0; }
  std::string_view text() const {
    expect(2);
    return text_;
  }
  float real() const {
    expect(5);
    float value;
    std::memcpy(&value, text_.data(), 4);
    return value;
  }

 private:
  void expect(int kind) const {
    if (kind_ != kind)
      raise<DataError>("field {} has the wire type {} in place of {}", field_, kind_, kind);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) throw DataError("the file is cut off within a number");
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    throw DataError("a number has more than 10 bytes");
  }
  std::string_view take(uint64_t size) {
    if (size > bytes_.size())
      raise<DataError>("a field declares {} bytes, but {} are left", size, bytes_.size());
    const std::string_view part = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return part;
  }

  std::string_view bytes_;
  uint64_t field_ = 0;
  uint64_t value_ = 0;
  std::string_view text_;
  int kind_ = 0;
};

} // namespace pentatron::data::tokenizer
