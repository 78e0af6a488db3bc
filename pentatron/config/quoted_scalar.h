/// Quoted scalars of several lines. yaml-cpp 0.7 loses line breaks at the end of one:
/// 'a' with three breaks before the quote is "a\n\n", and it gives "a\n".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pentatron::config {

/// The value of the scalar in single or double quotes that begins at `text[0]`, by YAML 1.2,
/// section 7.3: a line break is a space, one more of them a line break. None if the text does not
/// begin with a quote, or if the scalar is on one line. The scalar is valid YAML.
std::optional<std::string> folded_scalar(std::string_view text);

} // namespace pentatron::config
