/// What tokenizer.json puts around the tokens of a text.
#pragma once

#include <cstdint>
#include <vector>

#include "pentatron/base/json.h"

namespace pentatron::data::tokenizer {

struct PostProcessor {
  std::vector<int32_t> before, after;
};

/// The member "post_processor", for one text. Throws DataError, which names it, for a type that is
/// not known and for a template that has the text not just once.
PostProcessor make_post_processor(const Json& json);

} // namespace pentatron::data::tokenizer
