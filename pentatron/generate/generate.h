/// Text generation, for several texts at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pentatron/generate/sampling.h"
#include "pentatron/generate/session.h"
#include "pentatron/parallelize/parallelize.h"

namespace pentatron::generate {

struct Options {
  Sampling sampling;
  int64_t max_new_tokens = 200;
  uint64_t seed = 0; ///< token i of text s is drawn with Stream(seed, "sample") at (s, i)
  std::vector<uint64_t> numbers; ///< s of the texts; empty: 0, 1, ...
  std::vector<int64_t> variants; ///< of the weights, see nn::VariantRows; empty: none
  int64_t context = 0; ///< tokens of a text that the model sees at most; 0: its longest sequence
  std::vector<int64_t> stop_tokens; ///< any of them ends its text, as the text's last token
  bool fp8_cache = false;           ///< see nn::KvCache
};

/// Throws ConfigError if an option is out of range.
void check(const Options& options);

enum class Finish : uint8_t { kLength, kStopToken, kCaller };

struct Text {
  std::vector<int64_t> tokens; ///< generated tokens
  std::vector<double> logprobs;
  Finish finish = Finish::kLength;
};

/// Called for each new token of a text; return false to end the text after this token.
using OnToken = std::function<bool(size_t text, const Drawn& drawn)>;

/// Continues the prompts, which must not be empty. If a text becomes longer than the context,
/// generation continues from its second half. All tensor and pipeline ranks call this with the same
/// arguments, and all return the texts. Throws DataError if a prompt contains a token outside the
/// vocabulary.
std::vector<Text> generate(parallelize::ModelView model,
                           const std::vector<std::vector<int64_t>>& prompts, const Options& options,
                           const OnToken& on_token = {});

/// Like generate(), for one text, which is text 0 of the session. `prompt` is the complete text so
/// far; only the part that the session has not read yet is read.
Text continue_text(Session& session, const std::vector<int64_t>& prompt, const Options& options,
                   const OnToken& on_token = {});

} // namespace pentatron::generate
