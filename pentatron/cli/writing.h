/// What generate and chat have in common: options of sampling, and text that appears as it is
/// written.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/stream_decoder.h"
#include "pentatron/generate/generate.h"
#include "pentatron/generate/stop_strings.h"

namespace CLI {
class App;
}

namespace pentatron::cli {

struct WritingOptions {
  generate::Options options;
  std::vector<std::string> stops; ///< strings
};
void add_writing_options(CLI::App& verb, WritingOptions& writing);

/// The text of new tokens, one at a time. The prompt's end is known to it, so that a space or a
/// character that begins in the prompt is right.
class TextWriter {
 public:
  TextWriter(const data::Tokenizer& tokenizer, const std::vector<int64_t>& prompt,
             const std::vector<std::string>& stops);
  /// What can be shown now.
  std::string push(int64_t token);
  /// Whether a stop string has come.
  bool stopped() const { return stops_.found(); }
  std::string finish();
  /// All that was returned.
  const std::string& text() const { return text_; }

 private:
  data::StreamDecoder decoder_;
  generate::StopStrings stops_;
  std::string text_;
};

/// Prints text of a model at once, harmless for a terminal.
void show(const std::string& text);

} // namespace pentatron::cli
