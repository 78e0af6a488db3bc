/// The ids of tokens that an objective needs and a text does not have: [MASK], sentinels, padding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/config.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

/// The names that tokenizers give to the special tokens, and the order of their ids where a
/// tokenizer has none: padding, the begin of a text, its end, a masked token.
inline constexpr std::string_view kPadNames[] = {"[PAD]", "<pad>"};
inline constexpr std::string_view kClsNames[] = {"[CLS]", "<s>"};
inline constexpr std::string_view kSepNames[] = {"[SEP]", "</s>"};
inline constexpr std::string_view kMaskNames[] = {"[MASK]", "<mask>"};
inline constexpr std::string_view kEosNames[] = {"</s>"}; // of T5

/// Looks tokens up by name. One that the tokenizer does not have gets the next id above its
/// vocabulary, in the order of the calls: so any tokenizer will do.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Tokenizer& tokenizer)
      : tokenizer_(&tokenizer), end_(tokenizer.vocab_size()) {}

  /// The token named by the key's value, else the first of `names` that the tokenizer has. Throws
  /// ConfigError if the tokenizer has no token of the key's name.
  int64_t find(std::string_view key, const std::string& value,
               std::span<const std::string_view> names);
  /// "<extra_id_0>", "<extra_id_1>", ...; if the tokenizer has none, `count` ids above the
  /// vocabulary.
  std::vector<int64_t> sentinels(int64_t count);

  /// Those above the vocabulary: the names, whose ids follow each other.
  const std::vector<std::string>& added() const { return added_; }
  /// Ids are below it: what the model's vocabulary needs.
  int64_t vocab_size() const { return end_; }
  /// Throws ConfigError if the vocabulary of the model is smaller.
  void check(int64_t model_vocab_size) const;
  /// A line of Datasets::summary with those above the vocabulary: "[PAD]=257, [CLS]=258"; empty if
  /// there are none.
  std::string summary() const;

 private:
  std::string added_text() const;

  const Tokenizer* tokenizer_;
  int64_t end_;
  std::vector<std::string> added_;
};

/// Those of dataset.type=bert.
struct BertTokens {
  BertTokens(const DatasetConfig& config, SpecialTokens& special);
  int64_t pad, cls, sep, mask;
};

/// The token at the end of T5's inputs and targets: dataset.eos_token, else </s>, else the
/// end-of-document token.
int64_t find_eos(const DatasetConfig& config, const Tokenizer& tokenizer, SpecialTokens& special);

/// Those of dataset.type=t5.
struct T5Tokens {
  T5Tokens(const DatasetConfig& config, const Tokenizer& tokenizer, SpecialTokens& special);
  int64_t pad, eos;
  std::vector<int64_t> sentinels;
};

/// Tokens that a dataset's samples have in addition to those of their texts.
struct ObjectiveTokens {
  std::vector<std::string> added;      ///< names; their ids follow each other above the vocabulary
  std::vector<int32_t> before, behind; ///< of a single text
  int32_t eod = -1;                    ///< ends a text
};
/// Throws what SpecialTokens::find() does.
ObjectiveTokens objective_tokens(const DatasetConfig& config, const Tokenizer& tokenizer);

/// The vocabulary that a model needs for samples of that type: the tokenizer's, with the special
/// tokens that it lacks. Throws what SpecialTokens::find() does.
int64_t needed_vocabulary(const DatasetConfig& config, const Tokenizer& tokenizer);

/// For each token of the vocabulary, whether it continues the word of the previous token. A word
/// piece does if it begins with "##"; a token of a vocabulary with marked spaces, if it begins with
/// a letter or digit and no space; a byte, if it is part of a letter or digit.
std::vector<bool> continuing_tokens(const Tokenizer& tokenizer);

} // namespace pentatron::data
