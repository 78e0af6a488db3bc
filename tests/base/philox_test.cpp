#include "pentatron/base/philox.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

namespace pentatron {
namespace {

// The known answers that come with Random123 (tests/kat_vectors, "philox4x32 10").
TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Stream, NormalHasTheMomentsOfTheNormalDistribution) {
  const Stream stream(1, "moments");
  const int n = 1'000'000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  int beyond_two = 0;
  for (int i = 0; i < n; ++i) {
    const double x = stream.normal(static_cast<uint64_t>(i));
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    beyond_two += std::abs(x) > 2 ? 1 : 0;
  }
  // Five standard errors each: sqrt(1/n), sqrt(2/n), sqrt(15/n), sqrt(96/n).
  const double e = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(m1 / n, 0, e);
  EXPECT_NEAR(m2 / n, 1, e * std::sqrt(2.0));
  EXPECT_NEAR(m3 / n, 0, e * std::sqrt(15.0));
  EXPECT_NEAR(m4 / n, 3, e * std::sqrt(96.0));
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, std::erfc(std::sqrt(2.0)), e * 0.21);
}

TEST(Stream, UniformIsUniform) {
  const Stream stream(1, "uniform");
  const int n = 1'000'000;
  std::array<int, 10> count{};
  for (int i = 0; i < n; ++i) {
    const double u = stream.uniform(7, static_cast<uint64_t>(i));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++count[static_cast<size_t>(u * 10)];
  }
  for (const int c : count) EXPECT_NEAR(c, n / 10, 5 * std::sqrt(n * 0.09));
}

TEST(Stream, BelowStaysBelowAndReachesAll) {
  const Stream stream(3, "below");
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) seen.insert(stream.below(7, i));
  EXPECT_EQ(seen, (std::set<uint64_t>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(Stream, DependsOnSeedNameAndBothIndices) {
  std::set<PhiloxBlock> blocks;
  for (const uint64_t seed : {0, 1}) {
    for (const char* name : {"a", "b", "ab", "ba", ""}) {
      const Stream stream(seed, name);
      for (const uint64_t i : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
        for (const uint64_t j : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
          blocks.insert(stream.bits(i, j));
        }
      }
    }
  }
  EXPECT_EQ(blocks.size(), 2u * 5 * 4 * 3);
}

} // namespace
} // namespace pentatron
