/// Byte-pair encoding.
///
/// Source: Sennrich et al. 2015 (arXiv:1508.07909); the byte-level kind: GPT-2 (Radford et al.
/// 2019).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pentatron/data/tokenizer/merges.h"
#include "pentatron/data/tokenizer/model.h"

namespace pentatron::data::tokenizer {

struct BpeOptions {
  std::string unk_token;                 ///< empty: unknown characters vanish
  std::string continuing_subword_prefix; ///< of every character but a word's first
  std::string end_of_word_suffix;        ///< of a word's last character
  bool fuse_unk = false;                 ///< neighbouring unknown characters are one token
  bool byte_fallback = false;            ///< unknown characters are tokens <0x00> to <0xFF>
  bool ignore_merges = false;            ///< a word that is a token is that token
};

/// A pair of tokens by their text.
using TextMerge = std::pair<std::string, std::string>;

class BpeModel final : public Model {
 public:
  /// Merges in the order of their ranks. Throws DataError for a merge whose parts or result are not
  /// in the vocabulary.
  BpeModel(Vocabulary vocabulary, const std::vector<TextMerge>& merges, BpeOptions options);
  static std::unique_ptr<BpeModel> from_json(const Json& json);

  void encode(std::string_view word, WordCache& cache, std::vector<int32_t>& tokens) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

  const Merges& merges() const { return merges_; }
  const BpeOptions& options() const { return options_; }

 private:
  void encode_word(std::string_view word, std::vector<int32_t>& tokens) const;
  void symbols_of(std::string_view word, std::vector<int32_t>& symbols) const;
  bool can_cut_at_metaspace() const;

  Vocabulary vocabulary_;
  Merges merges_;
  BpeOptions options_;
  std::unordered_map<char32_t, int32_t> characters_; // tokens of one character
  std::array<int32_t, 256> byte_tokens_;             // <0x00> to <0xFF>, or -1
  bool has_byte_tokens_ = true;                      // all of them
  int32_t unk_ = -1;
  bool cut_at_metaspace_ = false; // no token crosses the beginning of a run of U+2581
};

/// The variant where symbols are bytes, without a conversion to characters.
class ByteBpe {
 public:
  /// `of_byte`: the tokens of single bytes; -1 stands for bytes that vanish. `whole`: bytes of
  /// tokens that a word is without merging, null for none.
  ByteBpe(const Merges& merges, const std::array<int32_t, 256>& of_byte,
          std::shared_ptr<const std::unordered_map<std::string, int32_t>> whole)
      : merges_(merges), of_byte_(of_byte), whole_(std::move(whole)) {}

  /// Appends the tokens of a word. The memory up to `limit` may be read.
  void encode(std::string_view word, const char* limit, WordCache& cache,
              std::vector<int32_t>& tokens) const;

 private:
  void encode_new(std::string_view word, WordCache& cache, std::vector<int32_t>& tokens) const;

  Merges merges_;
  std::array<int32_t, 256> of_byte_;
  std::shared_ptr<const std::unordered_map<std::string, int32_t>> whole_;
};

} // namespace pentatron::data::tokenizer
