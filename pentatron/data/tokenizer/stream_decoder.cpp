#include "pentatron/data/tokenizer/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "pentatron/data/utf8.h"

namespace pentatron::data {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
/// A character has at most 4 bytes, so more tokens than these hold something that is no character.
constexpr size_t kMaxHeld = 12;

bool ends_within_character(std::string_view text) {
  return text.ends_with(kReplacement) || incomplete_utf8_tail(text) != 0;
}

/// The part of `text` after what it shares with `shown`, from the start of a character.
std::string rest_of(const std::string& text, std::string_view shown) {
  size_t same = 0;
  while (same < shown.size() && same < text.size() && text[same] == shown[same]) ++same;
  while (same > 0 && same < text.size() && (static_cast<unsigned char>(text[same]) & 0xC0) == 0x80)
    --same;
  return text.substr(same);
}

} // namespace

std::string StreamDecoder::decode(const std::vector<int64_t>& tokens) const {
  return options_.with_special ? tokenizer_->decode_with_special(tokens)
                               : tokenizer_->decode(tokens);
}

std::string StreamDecoder::push(int64_t token) {
  tokens_.push_back(token);
  std::string text;
  try {
    text = decode(tokens_);
  } catch (...) {
    tokens_.pop_back();
    throw;
  }
  const size_t held = tokens_.size() - shown_;
  if (text.size() <= shown_text_.size() && held < kMaxHeld) return {};
  if (ends_within_character(text) && held < kMaxHeld) return {};
  std::string rest = rest_of(text, shown_text_);
  // The tokens shown now are what the next ones are read after: some decoders treat the first
  // token of a text in another way.
  const std::vector<int64_t> last(tokens_.begin() + static_cast<std::ptrdiff_t>(shown_),
                                  tokens_.end());
  std::string last_text = decode(last);
  if (!last_text.empty()) {
    tokens_ = last;
    shown_text_ = std::move(last_text);
  } else {
    if (tokens_.size() > 2 * kMaxHeld) tokens_.erase(tokens_.end() - 1);
    shown_text_ = decode(tokens_);
  }
  shown_ = tokens_.size();
  return rest;
}

std::string StreamDecoder::finish() {
  std::string rest = rest_of(decode(tokens_), shown_text_);
  tokens_.clear();
  shown_ = 0;
  shown_text_.clear();
  return rest;
}

} // namespace pentatron::data
