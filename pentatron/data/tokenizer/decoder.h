/// The decoders of tokenizer.json: the texts of tokens to one text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"

namespace pentatron::data::tokenizer {

/// Immutable: any number of threads may use one.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// The parts of the text, to be put together.
  virtual std::vector<std::string> apply(std::vector<std::string> tokens) const = 0;
};

/// The member "decoder" of tokenizer.json; null for null. Throws DataError, which names it, for a
/// type or an option that is not known.
std::unique_ptr<Decoder> make_decoder(const Json& json);

/// Whether a decoder is ByteLevel alone: the bytes of tokens one after another.
bool is_byte_level_decoder(const Json& json);

/// The byte of a token "<0x41>", or -1.
int fallback_byte(std::string_view token);

} // namespace pentatron::data::tokenizer
