/// English text that comes with the program, to compare the perplexity of two versions of a model.
#pragma once

#include <string_view>

namespace pentatron::cli {

/// About 2.5 kB, written for this purpose, so that no model has seen it in training.
extern const std::string_view kSampleText;

} // namespace pentatron::cli
