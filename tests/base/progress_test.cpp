#include <cstdio>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/log.h"
#include "pentatron/base/progress.h"
#include "tests/support/log_capture.h"

namespace pentatron {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ProgressText, FitsTheWidth) {
  EXPECT_EQ(progress_text("train", 50, 100, "loss 1.5", 60),
            "train [###############>---------------]  50% 50/100 loss 1.5");
  EXPECT_THAT(progress_text("train", 0, 100, "", 60), StartsWith("train [>----"));
  EXPECT_THAT(progress_text("train", 100, 100, "", 60), HasSubstr("####] 100% 100/100"));
  for (int width = 1; width < 100; ++width) {
    EXPECT_LE(progress_text("train", 7, 100, "a long text that does not fit", width).size(),
              static_cast<size_t>(width));
  }
  EXPECT_THAT(progress_text("train", 5, 0, "", 60), HasSubstr("  0% 5/0"));
}

TEST(Progress, LeavesPlainLinesInAFile) {
  const test::LogCapture console(false);
  {
    Progress quiet("reading", 100, {.line_every_s = 0});
    quiet.update(50);
    log::print("first line");
    Progress bar("reading", 4 << 20, {.unit = Progress::Unit::kBytes, .line_every_s = 1e-9});
    bar.update(1 << 20);
    bar.update(2 << 20, "of the model");
  }
  EXPECT_THAT(console.text(), StartsWith("first line\nreading: 25%, 1.0 MiB of 4.0 MiB"));
  EXPECT_THAT(console.text(), EndsWith(", of the model\n"));
  EXPECT_EQ(console.text().find('\r'), std::string::npos);
  EXPECT_EQ(console.text().find('\033'), std::string::npos);
}

TEST(Progress, IsTheLastLineOfATerminalUntilItsEnd) {
  const test::LogCapture console(true);
  {
    Progress bar("train", 2);
    bar.update(1, "a");
    log::print("first line");
    log::warning("second line");
    bar.update(2, "b");
  }
  log::info("end");
  const std::string text = console.text();
  EXPECT_THAT(text, StartsWith("\r\033[Ktrain ["));
  EXPECT_THAT(text, HasSubstr("\r\033[Kfirst line\ntrain ["));
  EXPECT_THAT(text, HasSubstr("\r\033[Kwarning: second line\ntrain ["));
  EXPECT_THAT(text, EndsWith("100% 2/2 b\r\033[K\r\033[Kend\n"));
}

TEST(Progress, DrawsItsEndOnce) {
  const test::LogCapture console(true);
  Progress bar("train", 2);
  for (int i = 0; i < 1000; ++i) bar.update(2);
  const std::string text = console.text();
  size_t draws = 0;
  for (size_t at = 0; (at = text.find("100%", at)) != std::string::npos; ++at) ++draws;
  EXPECT_LT(draws, 100u) << "at most ten a second";
}

TEST(Progress, IsNotDrawnWhereItIsTurnedOff) {
  const test::LogCapture console(true);
  {
    Progress bar("train", 2, {.draw = false});
    bar.update(1);
  }
  EXPECT_EQ(console.text(), "");
}

TEST(Progress, OfOtherRanksIsNotShown) {
  const test::LogCapture console(true);
  std::thread([] {
    log::set_thread_output(nullptr, /*console=*/false);
    Progress("rank 1", 2).update(1);
  }).join();
  EXPECT_EQ(console.text(), "");
}

TEST(Progress, NeverGoesBack) {
  const test::LogCapture console(true);
  Progress bar("train", 10);
  bar.update(10);
  bar.update(5); // of a thread that was slower
  EXPECT_EQ(console.text().find(" 50%"), std::string::npos);
}

} // namespace
} // namespace pentatron
