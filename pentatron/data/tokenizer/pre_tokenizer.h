/// The pre-tokenizers of tokenizer.json: a text to the words that the model sees one by one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer/splitter.h"

namespace pentatron::data::tokenizer {

/// A text in words, which may leave parts of it out.
struct Words {
  struct Word {
    size_t begin = 0, end = 0;
    bool first = false; ///< begins where the whole input does
  };
  std::string text;
  std::vector<Word> words;

  std::string_view view(const Word& word) const {
    return std::string_view(text).substr(word.begin, word.end - word.begin);
  }
};

enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};

/// Immutable: any number of threads may use one.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Cuts every word into words.
  virtual void apply(Words& words) const = 0;
};

/// One step of pre-tokenization that a byte-level model can take on the text itself.
struct ByteLevelStep {
  std::shared_ptr<const Splitter> splitter;
  bool keep_gaps = true; ///< text between matches is a word too
};

/// A pre-tokenizer that ends in ByteLevel and else only isolates matches; such a tokenizer needs no
/// copy of its text.
struct ByteLevelPlan {
  bool add_prefix_space = false;
  std::vector<ByteLevelStep> steps;
};

struct PreTokenization {
  std::unique_ptr<PreTokenizer> general; ///< null: the text is one word
  std::unique_ptr<ByteLevelPlan> plan;   ///< null if `general` is not of this kind
};

/// The member "pre_tokenizer" of tokenizer.json. Throws DataError, which names it, for a type or an
/// option that is not known.
PreTokenization make_pre_tokenizer(const Json& json);

} // namespace pentatron::data::tokenizer
