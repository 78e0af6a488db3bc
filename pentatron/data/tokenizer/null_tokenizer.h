/// Text that is numbers already.
#pragma once

#include "pentatron/data/tokenizer.h"

namespace pentatron::data::tokenizer {

/// Tokens are decimal numbers below `vocab_size` with white space between them; the end of a
/// document is the number `vocab_size`.
class NullTokenizer final : public Tokenizer {
 public:
  explicit NullTokenizer(int64_t vocab_size) : vocab_size_(vocab_size) {}
  std::string name() const override { return "null"; }
  int64_t vocab_size() const override { return vocab_size_ + 1; }
  int32_t eod() const override { return static_cast<int32_t>(vocab_size_); }
  void encode(std::string_view text, std::vector<int32_t>& tokens) const override;
  std::string decode(std::span<const int64_t> tokens) const override;
  std::string decode_with_special(std::span<const int64_t> tokens) const override;
  std::string token_name(int64_t id) const override { return std::to_string(id); }

 private:
  std::string decode(std::span<const int64_t> tokens, bool with_special) const;

  int64_t vocab_size_;
};

} // namespace pentatron::data::tokenizer
