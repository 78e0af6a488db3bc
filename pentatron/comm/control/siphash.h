/// SipHash-2-4 with 128 bits of output: authenticates messages under a secret key.
/// Source: Aumasson & Bernstein 2012, "SipHash: a fast short-input PRF" (ia.cr/2012/351), and the
/// authors' reference for 128 bits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace pentatron::comm::control {

using Key = std::array<uint8_t, 16>;

Key siphash(const Key& key, std::string_view message);

/// Whether they are equal, in a time that does not tell where they differ.
bool equal_keys(const Key& a, const Key& b);

/// 128 bits from the system's generator.
Key random_key();

/// 32 hexadecimal digits.
std::string to_hex(const Key& key);
/// Throws ConfigError if `text` is anything else; the text is not shown.
Key key_from_hex(std::string_view text);

} // namespace pentatron::comm::control
