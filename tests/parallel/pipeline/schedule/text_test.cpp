#include "pentatron/parallel/pipeline/schedule/text.h"

#include <gmock/gmock.h>

#include "pentatron/parallel/pipeline/schedule/lower.h"
#include "tests/parallel/pipeline/schedule/schedule_text.h"

namespace pentatron::pipeline {
namespace {

using testing::HasSubstr;

TEST(Text, OfActionsIsAsDocumented) {
  EXPECT_EQ(to_text(forward(2, 0)), "2F0");
  EXPECT_EQ(to_text(backward(0, 11)), "0B11");
  EXPECT_EQ(to_text(backward_input(1, 3)), "1I3");
  EXPECT_EQ(to_text(backward_weight(1, 3)), "1W3");
  EXPECT_EQ(to_text(overlap(2, 3, 5, 1)), "2F3+5B1");
  const std::string text = test::to_text(lower(make_schedule("1f1b", 2, 0, 1)));
  EXPECT_THAT(text, HasSubstr("rank 0: 0recvB0<1 0F0 0sendF0>1 0free0 0B0\n"));
  EXPECT_THAT(text, HasSubstr("rank 1: 1recvF0<0 1F0 1free0 1B0 1sendB0>0\n"));
}

TEST(Text, OfTestsHasAllOfASchedule) {
  for (const std::string& name : schedule_names()) {
    for (const int m : {1, 5, 40}) {
      const Schedule made = make_schedule(name, 3, 0, m);
      for (const Schedule& s : {made, lower(made)})
        EXPECT_EQ(test::parse_schedule(test::to_text(s)), s);
    }
  }
}

} // namespace
} // namespace pentatron::pipeline
