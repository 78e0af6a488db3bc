/// What turns a word into tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer/vocabulary.h"

namespace pentatron::data::tokenizer {

class WordCache;

/// Immutable: any number of threads may use one, each with its own cache.
class Model {
 public:
  virtual ~Model() = default;
  /// Appends the tokens of a word, not empty, valid UTF-8. Throws DataError if it has none.
  virtual void encode(std::string_view word, WordCache& cache,
                      std::vector<int32_t>& tokens) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

/// The member "model" of tokenizer.json. Throws DataError, which names it, for a type or an option
/// that is not known, and for one that is damaged.
std::unique_ptr<Model> make_model(const Json& json);

/// For the types other than BPE.
std::unique_ptr<Model> make_word_piece(const Json& json);
std::unique_ptr<Model> make_word_level(const Json& json);
std::unique_ptr<Model> make_unigram(const Json& json);

} // namespace pentatron::data::tokenizer
