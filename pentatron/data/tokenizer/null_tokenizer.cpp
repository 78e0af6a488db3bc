#include "pentatron/data/tokenizer/null_tokenizer.h"

#include <charconv>

#include "pentatron/base/error.h"

namespace pentatron::data::tokenizer {

void NullTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens) const {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  for (;;) {
    const size_t begin = text.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find_first_of(kSpace));
    text.remove_prefix(word.size());
    int64_t value = -1;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || stop != word.data() + word.size() || value < 0 ||
        value >= vocab_size_)
      raise<DataError>("'{}' is not a token id: tokenizer.type=null reads numbers from 0 to {}",
                       word.substr(0, 40), vocab_size_ - 1);
    tokens.push_back(static_cast<int32_t>(value));
  }
}

std::string NullTokenizer::decode(std::span<const int64_t> tokens) const {
  return decode(tokens, false);
}
std::string NullTokenizer::decode_with_special(std::span<const int64_t> tokens) const {
  return decode(tokens, true);
}

std::string NullTokenizer::decode(std::span<const int64_t> tokens, bool with_special) const {
  std::string text;
  for (const int64_t id : tokens) {
    if (id < 0 || id > vocab_size_)
      raise<DataError>("token {} is outside the tokenizer's range of 0 to {}", id, vocab_size_);
    if (id == vocab_size_ && !with_special) continue;
    if (!text.empty()) text += ' ';
    text += std::to_string(id);
  }
  return text;
}

} // namespace pentatron::data::tokenizer
