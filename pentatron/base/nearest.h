/// Edit distance, and the candidate nearest to what somebody typed: for "did you mean".
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pentatron {

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the smallest edit distance to `name`, the first of equals; empty where even
/// that is further than max(2, half of the longer name).
std::string nearest(std::string_view name, std::span<const std::string> candidates);

} // namespace pentatron
