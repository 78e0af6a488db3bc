#include "pentatron/comm/control/siphash.h"

#include "pentatron/base/error.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <sys/random.h>

namespace pentatron::comm::control {

namespace {

uint64_t load(const uint8_t* bytes, size_t count = 8) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= uint64_t{bytes[i]} << (8 * i);
  return value;
}

struct SipState {
  uint64_t v0, v1, v2, v3;

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void absorb(uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
};

} // namespace

Key siphash(const Key& key, std::string_view message) {
  const uint64_t k0 = load(key.data()), k1 = load(key.data() + 8);
  SipState state{k0 ^ 0x736f6d6570736575ULL, k1 ^ 0x646f72616e646f6dULL ^ 0xee,
                 k0 ^ 0x6c7967656e657261ULL, k1 ^ 0x7465646279746573ULL};
  const auto* bytes = reinterpret_cast<const uint8_t*>(message.data());
  size_t left = message.size();
  for (; left >= 8; left -= 8, bytes += 8) state.absorb(load(bytes));
  state.absorb(load(bytes, left) | uint64_t{message.size() & 0xff} << 56);
  Key result;
  for (int half = 0; half < 2; ++half) {
    half == 0 ? state.v2 ^= 0xee : state.v1 ^= 0xdd;
    state.rounds(4);
    const uint64_t word = state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
    for (int i = 0; i < 8; ++i) result[8 * half + i] = static_cast<uint8_t>(word >> (8 * i));
  }
  return result;
}

bool equal_keys(const Key& a, const Key& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= unsigned{a[i]} ^ unsigned { b[i] };
  return difference == 0;
}

Key random_key() {
  Key key;
  for (size_t filled = 0; filled < key.size();) {
    const ssize_t count = ::getrandom(key.data() + filled, key.size() - filled, 0);
    if (count > 0)
      filled += static_cast<size_t>(count);
    else if (errno != EINTR)
      raise<CommError>("cannot get random numbers for a job secret ({})", std::strerror(errno));
  }
  return key;
}

std::string to_hex(const Key& key) {
  std::string text;
  for (const uint8_t byte : key) text += fmt::format("{:02x}", byte);
  return text;
}

Key key_from_hex(std::string_view text) {
  Key key{};
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  bool valid = text.size() == 2 * key.size();
  for (size_t i = 0; valid && i < key.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    valid = high >= 0 && low >= 0;
    key[i] = static_cast<uint8_t>(16 * high + low);
  }
  if (!valid) raise<ConfigError>("the job secret is not 32 hexadecimal digits");
  return key;
}

} // namespace pentatron::comm::control
