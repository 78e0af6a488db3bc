#include "pentatron/data/tokenizer.h"

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/post_processor.h"

namespace pentatron::data {

namespace {

/// Of a tokenizer that needs no scratch memory.
class PlainEncoder final : public Encoder {
 public:
  explicit PlainEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void encode(std::string_view text, std::vector<int32_t>& tokens) override {
    tokenizer_.encode(text, tokens);
  }

 private:
  const Tokenizer& tokenizer_;
};

} // namespace

EncodedPair Tokenizer::encode_pair(std::string_view text, std::optional<std::string_view> second,
                                   int64_t max_length) const {
  std::vector<int32_t> first_tokens;
  encode(text, first_tokens);
  std::optional<std::vector<int32_t>> second_tokens;
  if (second) encode(*second, second_tokens.emplace());
  return tokenizer::post_process({}, std::move(first_tokens), std::move(second_tokens), max_length);
}

std::unique_ptr<Encoder> Tokenizer::make_encoder() const {
  return std::make_unique<PlainEncoder>(*this);
}

std::optional<int32_t> Tokenizer::token_id(std::string_view) const {
  return std::nullopt;
}

void ByteTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens) const {
  const size_t before = tokens.size();
  tokens.resize(before + text.size());
  int32_t* out = tokens.data() + before;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  for (size_t i = 0; i < text.size(); ++i) out[i] = bytes[i];
}

std::string ByteTokenizer::decode(std::span<const int64_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const int64_t id : tokens) {
    if (id == kEod) continue;
    if (id < 0 || id > kEod)
      raise<DataError>("token {} is outside the byte tokenizer's range of 0 to 256", id);
    text += static_cast<char>(id);
  }
  return text;
}

std::string ByteTokenizer::token_name(int64_t id) const {
  if (id == kEod) return "<eod>";
  if (id < 0 || id > kEod)
    raise<DataError>("token {} is outside the byte tokenizer's range of 0 to 256", id);
  if (id > 0x20 && id < 0x7F) return std::string(1, static_cast<char>(id));
  return fmt::format("<0x{:02X}>", id);
}

} // namespace pentatron::data
