// Plots of several runs, as a user draws them.
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlotCommand : public test::ProgramFolder {
 protected:
  PlotCommand() {
    for (const char* run : {"runs/a", "runs/b", "other/a"}) {
      fs::create_directories(folder / run);
      std::ofstream out(folder / run / "metrics.jsonl");
      for (int i = 1; i <= 50; ++i) {
        out << fmt::format("{{\"iteration\":{},\"loss\":{},\"grad_norm\":1.5,\"step_time_s\":0.5,"
                           "\"tokens_per_s\":100,\"learning_rate\":0.1,\"z_loss\":{},\"experts\":"
                           "[{{\"max_load\":2,\"entropy\":0.9,\"unused\":1,\"dropped\":0}}]}}\n",
                           i, 5.0 / i, 9.0 / i);
        if (i % 10 == 0)
          out << fmt::format("{{\"iteration\":{},\"validation_loss\":{}}}\n", i, 6.0 / i);
      }
    }
  }
  std::string plot(const std::string& arguments, int status = 0) const {
    return run("plot " + arguments + " 2>&1", status);
  }
  std::string picture(const std::string& name = "plot.svg") const {
    return content_of(folder / name);
  }
};

TEST_F(PlotCommand, DrawsSeveralRunsInOnePicture) {
  EXPECT_EQ(plot("runs/a runs/b/metrics.jsonl"), "plot.svg: loss of 2 runs\n");
  EXPECT_THAT(picture(), AllOf(HasSubstr("<svg"), HasSubstr(">a<"), HasSubstr(">b<"),
                               HasSubstr("thick c1"), HasSubstr("<circle"), Not(HasSubstr("nan"))));
  const std::string first = picture();
  for (const char* options : {"--x tokens", "--x time", "--y grad_norm", "--y tokens_per_second",
                              "--y lr", "--smooth 0", "--log-x", "--log-y", "--title other"}) {
    plot(std::string("runs/a runs/b --overwrite ") + options);
    EXPECT_NE(picture(), first) << options;
  }
  plot("runs/a other/a --output same.svg");
  EXPECT_THAT(picture("same.svg"), AllOf(HasSubstr(">runs/a<"), HasSubstr(">other/a<")));
  plot("runs/a/ --output slash.svg");
  EXPECT_THAT(picture("slash.svg"), HasSubstr(">a<"));
}

TEST_F(PlotCommand, DrawsLossesOfTheRouterAndTheLoadOfExperts) {
  EXPECT_EQ(plot("runs/a runs/b --y z_loss"), "plot.svg: z loss of 2 runs\n");
  EXPECT_THAT(picture(), AllOf(HasSubstr(">z loss<"), HasSubstr(">b<")));
  EXPECT_EQ(plot("runs/a --y expert_max_load --output load.svg"),
            "load.svg: expert max load of 1 run\n");
  EXPECT_NE(picture("load.svg"), picture());
  plot("runs/a --y validation_loss --output validation.svg");
  EXPECT_THAT(picture("validation.svg"), HasSubstr(">validation loss<"));
}

TEST_F(PlotCommand, DrawsARunOnce) {
  EXPECT_THAT(plot("runs/a runs/b/../a"),
              AllOf(HasSubstr("warning: runs/b/../a is given twice, but drawn once\n"),
                    HasSubstr("plot.svg: loss of 1 run\n")));
  EXPECT_THAT(plot("runs/a --smooth nan --overwrite", 2),
              HasSubstr("--smooth nan is not a number from 0 to 1e9\n  try: --smooth 0\n"));
}

TEST_F(PlotCommand, TakesAFileAsOutput) {
  EXPECT_THAT(plot("runs/a --output runs", 2), HasSubstr("try: --output runs/plot.svg"));
  EXPECT_THAT(plot("runs/a --output ''", 2), HasSubstr("--output is empty"));
}

TEST_F(PlotCommand, SaysWhatIsMissing) {
  EXPECT_THAT(plot("nowhere", 1), HasSubstr("nowhere does not exist"));
  EXPECT_THAT(plot("runs", 1), HasSubstr("runs contains no metrics.jsonl"));
  EXPECT_THAT(plot("runs/a --y mfu", 1), HasSubstr("a contains no values of mfu"));
  EXPECT_THAT(plot("runs/a --y size", 1),
              AllOf(HasSubstr("metrics.jsonl contains no values of size\n"),
                    HasSubstr("try: --y with one of expert_dropped, "), HasSubstr(", z_loss\n")));
  std::ofstream(folder / "runs/b/metrics.jsonl", std::ios::app) << "oops\n{\"iteration\":51}\n";
  EXPECT_FALSE(fs::exists(folder / "plot.svg"));
  EXPECT_THAT(plot("runs/b"),
              AllOf(HasSubstr("runs/b/metrics.jsonl: 1 damaged line is left out; the first is "
                              "line 56"),
                    HasSubstr("plot.svg: loss of 1 run\n")));
}

} // namespace
} // namespace pentatron
