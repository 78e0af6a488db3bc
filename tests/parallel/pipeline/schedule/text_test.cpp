#include "pentatron/parallel/pipeline/schedule/text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"

namespace pentatron::pipeline {
namespace {

using testing::HasSubstr;

constexpr const char* kOneFOneB = R"(schedule 1f1b
ranks 2
stages 2
microbatches 2
rank_of_stage 0 1
rank 0: 0F0 0F1 0B0 0B1
rank 1: 1F0 1B0 1F1 1B1
)";

TEST(Text, IsAsDocumented) {
  EXPECT_EQ(to_text(make_schedule("1f1b", 2, 0, 2)), kOneFOneB);
  EXPECT_EQ(parse_schedule(kOneFOneB), make_schedule("1f1b", 2, 0, 2));
}

TEST(Text, OfTheLoweredFormIsAsDocumented) {
  const std::string text = to_text(lower(make_schedule("1f1b", 2, 0, 1)));
  EXPECT_THAT(text, HasSubstr("lowered\n"));
  EXPECT_THAT(text, HasSubstr("rank 0: 0recvB0<1 0F0 0sendF0>1 0free0 0B0\n"));
  EXPECT_THAT(text, HasSubstr("rank 1: 1recvF0<0 1F0 1free0 1B0 1sendB0>0\n"));
}

TEST(Text, RoundTripsExactly) {
  for (const std::string& name : schedule_names()) {
    for (const int m : {1, 5, 40}) {
      const Schedule made = make_schedule(name, 3, 0, m);
      for (const Schedule& s : {made, lower(made)}) {
        const std::string text = to_text(s);
        EXPECT_EQ(parse_schedule(text), s);
        EXPECT_EQ(to_text(parse_schedule(text)), text);
      }
    }
  }
}

TEST(Text, AllowsCommentsBlankLinesAndWrapping) {
  EXPECT_EQ(parse_schedule("# mine\n\nschedule 1f1b # by hand\nranks 2\nstages 2\r\n"
                           "microbatches 2\nrank_of_stage 0  1\nrank 0:\n  0F0 0F1 # warm-up\n"
                           "\t0B0 0B1\nrank 1: 1F0\n 1B0 1F1 1B1"),
            make_schedule("1f1b", 2, 0, 2));
}

std::string message(std::string_view text) {
  try {
    parse_schedule(text, "s.txt");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string_view from, std::string_view to) {
  std::string text = kOneFOneB;
  return text.replace(text.find(from), from.size(), to);
}

TEST(Text, ErrorsNameTheLine) {
  EXPECT_THAT(message(""), HasSubstr("s.txt:0: the schedule ends too early"));
  EXPECT_THAT(message("nothing\n"), HasSubstr("s.txt:1: \"schedule ...\" is expected"));
  EXPECT_THAT(message(replaced("1f1b", "a/b")), HasSubstr("s.txt:1: the name \"a/b\""));
  EXPECT_THAT(message(replaced("ranks 2", "ranks 0")), HasSubstr("s.txt:2: ranks is not"));
  EXPECT_THAT(message(replaced("ranks 2", "ranks 99999999999")), HasSubstr("s.txt:2:"));
  EXPECT_THAT(message(replaced("ranks 2", "ranks 2000000")), HasSubstr("s.txt:2:"));
  EXPECT_THAT(message(replaced("ranks 2", "ranks 02")), HasSubstr("s.txt:2:"));
  EXPECT_THAT(message(replaced("stages 2", "stages 3")), HasSubstr("s.txt:5: rank_of_stage has 2"));
  EXPECT_THAT(message(replaced("stage 0 1", "stage 0 2")),
              HasSubstr("s.txt:5: there is no rank 2"));
  EXPECT_THAT(message(replaced("0F1", "0F2")), HasSubstr("s.txt:6: there is no microbatch 2 of 2"));
  EXPECT_THAT(message(replaced("0F1", "2F1")), HasSubstr("s.txt:6: there is no stage 2 of 2"));
  EXPECT_THAT(message(replaced("0F1", "0X1")), HasSubstr("\"0X1\" is not an action"));
  EXPECT_THAT(message(replaced("0F1", "0F1x")), HasSubstr("\"0F1x\" is not an action"));
  EXPECT_THAT(message(replaced("0F1", "0B1+0B1")), HasSubstr("is not an action"));
  EXPECT_THAT(message(replaced("0F1", "0F-1")), HasSubstr("does not begin with a number"));
  EXPECT_THAT(message(replaced("0F1", "0sendF1>2")), HasSubstr("there is no rank 2 of 2"));
  EXPECT_THAT(message(replaced("0F1", "0sendF1<1")), HasSubstr("is not an action"));
  EXPECT_THAT(message(replaced("rank 1", "rank 2")), HasSubstr("s.txt:7: \"rank 1: ...\""));
  EXPECT_THAT(message(fmt::format("{}rank 2: 0F0\n", kOneFOneB)),
              HasSubstr("s.txt:8: there are only 2 ranks"));
  EXPECT_THAT(message(replaced("rank 1: 1F0 1B0 1F1 1B1\n", "")),
              HasSubstr("there are actions of 1 ranks and not of 2"));
}

} // namespace
} // namespace pentatron::pipeline
