/// The tokenizer that a command line names.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

/// The name of the tokenizer with one token per byte, in place of a file.
inline constexpr std::string_view kBytesTokenizer = "bytes";

/// "bytes", or a file or folder of a tokenizer (tokenizer/open.h) and how it splits text into
/// words. Throws DataError, and ConfigError if the tokenizer has no use for a pattern.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name,
                                                const std::string& pattern);
/// Opens a tokenizer only for decoding.
std::shared_ptr<const Tokenizer> open_decoder(const std::string& name);

} // namespace pentatron::data
