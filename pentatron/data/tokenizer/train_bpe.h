/// Learns a byte-level BPE from text.
///
/// Source: Sennrich et al. 2015 (arXiv:1508.07909), on the bytes of GPT-2's words.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer/splitter.h"

namespace pentatron::data::tokenizer {

/// Counts words as text comes in, then learns merges. Memory grows with the number of different
/// words, not with the text.
class BpeTrainer {
 public:
  static constexpr int64_t kMostTokens = 1 << 20;
  struct Options {
    int64_t vocab_size = 32000; ///< with the 256 bytes and the special tokens
    std::string pattern;        ///< how text is split into words; empty: GPT-2's
    std::vector<std::string> special = {"<|endoftext|>"};
    int64_t min_frequency = 1; ///< pairs seen less often never merge
  };
  /// Throws ConfigError if the vocabulary has no room for bytes and special tokens.
  explicit BpeTrainer(Options options);

  /// A part of the text, valid UTF-8; words do not cross its ends.
  void add(std::string_view text);
  /// A tokenizer.json. The pair seen most often merges first; of equals, the one whose tokens are
  /// older. Fewer tokens than asked for if no pair is left. Throws DataError without any text.
  Json train();

 private:
  Options options_;
  std::shared_ptr<const Splitter> splitter_;
  std::unordered_map<std::string, int64_t> words_;
};

} // namespace pentatron::data::tokenizer
