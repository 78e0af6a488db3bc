/// The layers of a kind, given as a number or a list.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace pentatron::models {

/// "N": layers whose number is a multiple of N. Else terms joined by +, each a list of 0 and 1 or a
/// parenthesis, either times a number: "([0]*2+[1])*3". Throws ConfigError for other text, and if
/// a list does not have one number for each of `layers`, at most kLongestLayerList.
std::vector<bool> parse_layer_pattern(std::string_view text, int64_t layers);
inline constexpr int64_t kLongestLayerList = 4096;
/// Element `index` of it.
bool is_in_layer_pattern(std::string_view text, int64_t layers, int64_t index);

} // namespace pentatron::models
