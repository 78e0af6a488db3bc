/// Finds stop strings in text that arrives in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pentatron::generate {

/// Text that may still become a stop string is held back, so no part of a stop string is shown.
class StopStrings {
 public:
  /// Empty strings stop nothing.
  explicit StopStrings(std::vector<std::string> stops);

  /// The next piece; returns what can be shown now.
  std::string push(std::string_view piece);
  /// Whether a stop string has come; the text ends in front of it, and pieces after it are dropped.
  bool found() const { return found_; }
  /// What was held back, at the end of a text without a stop string.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

} // namespace pentatron::generate
