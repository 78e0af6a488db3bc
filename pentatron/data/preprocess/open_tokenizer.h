/// The tokenizer that a command line names.
#pragma once

#include <memory>
#include <string>

#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

/// "bytes", or what the configuration's tokenizer.path takes. Throws ConfigError or DataError.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);

} // namespace pentatron::data
