/// A way to train a model, and a layout to do it in.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace pentatron::test {

/// A model and a way to train it, the same for one rank and for many.
struct Work {
  std::string name;
  std::string keys;                     ///< key=value, separated by spaces
  std::string data = "documents.jsonl"; ///< the file that it is trained on
  /// Rounding decides between two neighbours, which are far apart: fp32 runs go their own ways.
  bool jumps = false;
};

struct Layout {
  std::string name;
  std::string work; ///< name of a Work
  int ranks;
  std::string keys;
  bool in_ci; ///< else only in the full matrix
};
inline std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << layout.name;
}

/// The one list behind the other.
template <class T> std::vector<T> joined(std::vector<T> first, const std::vector<T>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

} // namespace pentatron::test
