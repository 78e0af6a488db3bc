#include "pentatron/base/document_lengths.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

namespace pentatron {
namespace {

DocumentLengths lengths_of(const std::vector<int64_t>& documents) {
  DocumentLengths lengths;
  for (const int64_t length : documents) lengths.add(length);
  return lengths;
}

TEST(DocumentLengths, ClassesBeginAtFourPlacesOfEachPowerOfTwo) {
  int64_t begins = 0;
  size_t last = 0;
  for (int64_t length = 1; length < 1024; ++length) {
    const size_t size = lengths_of({length}).classes().size();
    if (size == last) continue;
    EXPECT_EQ(size, last == 0 ? 2 : last + 1) << length;
    const int64_t step = length < 8 ? 1 : int64_t{1} << (std::bit_width(uint64_t(length)) - 3);
    EXPECT_EQ(length % step, 0) << length;
    last = size;
    ++begins;
  }
  EXPECT_EQ(begins, 7 + 4 * 7);
  EXPECT_EQ(std::ssize(lengths_of({(int64_t{1} << 31) - 1}).classes()),
            DocumentLengths::kNumClasses);
}

TEST(DocumentLengths, AddUpInEveryOrderAndAsCounts) {
  const DocumentLengths all = lengths_of({1, 900, 5, 901, 0, 31});
  DocumentLengths sum = lengths_of({5, 31});
  sum += lengths_of({901, 1, 900});
  sum += DocumentLengths();
  EXPECT_EQ(sum, all);
  EXPECT_EQ(
      all.classes().back(),
      (DocumentLengths::Class{.documents = 2, .tokens = 1801, .squares = 900 * 900 + 901 * 901}));
  const std::vector<int64_t> counts = all.to_counts();
  ASSERT_EQ(std::ssize(counts), 3 * DocumentLengths::kNumClasses);
  EXPECT_EQ(DocumentLengths::from_counts(counts.data()), all);
  EXPECT_TRUE(lengths_of({0}).empty());
}

} // namespace
} // namespace pentatron
