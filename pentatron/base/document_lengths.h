/// Lengths of documents, counted in classes: what attention within a window costs.
///
/// A class holds the lengths from m 2^k to below (m + 1) 2^k, m in {4, 5, 6, 7}; shorter ones have
/// a class each.
#pragma once

#include <cstdint>
#include <vector>

namespace pentatron {

class DocumentLengths {
 public:
  /// Sums over the documents of a class.
  struct Class {
    int64_t documents = 0, tokens = 0, squares = 0; ///< squares: of the lengths
    bool operator==(const Class&) const = default;
  };
  static constexpr int64_t kNumClasses = 120; ///< of lengths below 2^31

  /// A document in a sample, so length < 2^31; one without tokens does not count.
  void add(int64_t length);
  DocumentLengths& operator+=(const DocumentLengths& other);

  bool empty() const { return classes_.empty(); }
  /// From the shortest documents to the longest; classes may be empty, the last one is not.
  const std::vector<Class>& classes() const { return classes_; }

  /// [3 * kNumClasses], which ranks can add up.
  std::vector<int64_t> to_counts() const;
  static DocumentLengths from_counts(const int64_t* counts);

  bool operator==(const DocumentLengths&) const = default;

 private:
  std::vector<Class> classes_;
};

} // namespace pentatron
