/// The characters by which byte-level tokenizers (GPT-2) write bytes in their files.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pentatron::data::tokenizer {

/// The character of every byte.
const std::array<char32_t, 256>& byte_characters();
/// The byte of a character, or -1.
int character_byte(char32_t c);
/// Bytes as characters.
std::string bytes_to_characters(std::string_view bytes);
/// The bytes of a token; none if a character of it stands for no byte.
std::optional<std::string> characters_to_bytes(std::string_view token);

} // namespace pentatron::data::tokenizer
