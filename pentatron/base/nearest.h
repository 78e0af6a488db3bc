/// Edit distance, and the candidate nearest to a misspelled word, for suggestions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pentatron {

/// Number of insertions, deletions, substitutions and swaps of adjacent characters that turn `a`
/// into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

/// How far `candidate` is from `typed`; nothing if they have too little in common. The smallest of:
///   0   equal up to case and the separators . _ -, or a known synonym (float32 for fp32)
///   1   `typed` is the beginning of `candidate`, of 3 characters or more
///   2   `typed` is the end of `candidate`, of 4 characters or more
///   n   n edits: up to a third of the longer name, or one edit after the first character of
///       names of 3 and 4 characters
///   3   `candidate`, of 4 characters or more, is the beginning of `typed`
std::optional<size_t> nearness(std::string_view typed, std::string_view candidate);

/// The candidate nearest to `typed`, the first of equals; empty if none is near.
std::string nearest(std::string_view typed, std::span<const std::string> candidates);

} // namespace pentatron
