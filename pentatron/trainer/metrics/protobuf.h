/// Protobuf messages written by hand: fields are appended to a string in any order.
/// Source: https://protobuf.dev/programming-guides/encoding/
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pentatron::trainer::protobuf {

template <class T> void append_raw(std::string& out, T value) { // little-endian, as this machine is
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline void append_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

// Protobuf fields: a key of number and wire type, then the value.
inline void append_int(std::string& out, uint32_t field, int64_t value) {
  append_varint(out, field << 3);
  append_varint(out, static_cast<uint64_t>(value));
}
inline void append_double(std::string& out, uint32_t field, double value) {
  append_varint(out, field << 3 | 1);
  append_raw(out, value);
}
inline void append_float(std::string& out, uint32_t field, float value) {
  append_varint(out, field << 3 | 5);
  append_raw(out, value);
}
inline void append_bytes(std::string& out, uint32_t field, std::string_view value) {
  append_varint(out, field << 3 | 2);
  append_varint(out, value.size());
  out += value;
}
inline std::string bytes_field(uint32_t field, std::string_view value) {
  std::string out;
  append_bytes(out, field, value);
  return out;
}

} // namespace pentatron::trainer::protobuf
