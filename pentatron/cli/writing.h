/// Common parts of generate, chat and serve: sampling options, cache options, and text on the
/// terminal.
#pragma once

#include <string>
#include <vector>

#include "pentatron/generate/generate.h"
#include "pentatron/generate/text_writer.h"

namespace CLI {
class App;
}

namespace pentatron::cli {

using generate::TextWriter;

struct WritingOptions {
  generate::Options options;
  std::vector<std::string> stops; ///< strings
};
void add_writing_options(CLI::App& verb, WritingOptions& writing);
/// Throws ConfigError for options that are out of range or without effect.
void check_writing(const WritingOptions& writing);

/// --kv-cache-dtype.
void add_cache_option(CLI::App& verb, bool& fp8_cache);

/// Prints text of a model at once, harmless for a terminal.
void show(const std::string& text);

} // namespace pentatron::cli
