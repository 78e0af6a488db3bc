/// The tokenizer of a run as its checkpoints keep it, so that they can be used without its files.
#pragma once

#include <map>
#include <string>

#include "pentatron/data/config.h"

namespace pentatron::trainer {

struct StoredTokenizer {
  /// Equal for tokenizers made of files with the same content and the same keys: "bytes",
  /// "null:100", "sha256:...".
  std::string digest;
  /// "tokenizer/<name>" -> content, including files next to the tokenizer's own ones
  /// (tokenizer_config.json, chat template). Empty, with a warning, if they are too large for a
  /// checkpoint.
  std::map<std::string, std::string> files;
};

/// `config` is one that data::make_tokenizer() accepts. Throws DataError if a file cannot be read.
StoredTokenizer stored_tokenizer(const data::TokenizerConfig& config);

} // namespace pentatron::trainer
