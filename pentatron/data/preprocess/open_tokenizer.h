/// The tokenizer that a command line names.
#pragma once

#include <memory>
#include <string>

#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

/// "bytes", or a file or folder of a tokenizer (tokenizer/open.h). Throws DataError.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);

} // namespace pentatron::data
