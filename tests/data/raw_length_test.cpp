#include <gtest/gtest.h>

#include "pentatron/data/objectives/masking.h"

namespace pentatron::data {
namespace {

TEST(RawLength, IsTheLongestThatFits) {
  const auto input_of = [](int64_t raw, double density, double mean) {
    const Stream stream(1, "raw length");
    Draws draws(stream, 0);
    const std::vector<Span> spans = noise_spans(raw, density, mean, draws);
    int64_t input = raw + 1;
    for (const Span& span : spans) input -= span.end - span.begin - 1;
    return input;
  };
  for (const double density : {0.15, 0.5, 0.8}) {
    for (const double mean : {1.0, 3.0, 4.5}) {
      for (const int64_t input : {4, 37, 128}) {
        for (const int64_t target : {5, 30, 129}) {
          int64_t longest = 1;
          for (int64_t raw = 2; raw <= input + target; ++raw)
            if (input_of(raw, density, mean) <= input &&
                target_length_of(raw, density, mean) <= target)
              longest = raw;
          EXPECT_EQ(raw_length_for(input, target, density, mean), longest)
              << density << ", " << mean << ", " << input << ", " << target;
        }
      }
    }
  }
}

TEST(RawLength, OfLongInputsIsFoundAtOnce) {
  const int64_t input = int64_t{1} << 61;
  const int64_t raw = raw_length_for(input, input + 1, 0.15, 3);
  EXPECT_GT(raw, input);
  EXPECT_LE(raw, 2 * input);
}

} // namespace
} // namespace pentatron::data
