// Every checkpoint and export that was not saved is told once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/trainer/failed_saves.h"
#include "tests/support/log_capture.h"
#include "tests/support/ranks.h"

namespace pentatron::trainer {
namespace {

using test::log_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FailedSaves, TheRunEndsWithOneAndTheOthersAreLogged) {
  FailedSaves failed(OnSaveError::kContinue, /*tells=*/true);
  std::optional<FailedSave> end;
  const std::string log = log_of([&] {
    failed.add(1, "export", "a is full");
    failed.add(2, "checkpoint", "b is full\n  try: another b");
    end = failed.finish();
  });
  ASSERT_TRUE(end);
  EXPECT_EQ(end->what, "checkpoint");
  EXPECT_EQ(end->iteration, 2);
  EXPECT_EQ(end->text, "the checkpoint of iteration 2 was not saved: b is full");
  EXPECT_EQ(end->remedy, "another b");
  EXPECT_THAT(log, AllOf(HasSubstr("the export of iteration 1 was not saved: a is full"),
                         Not(HasSubstr("earlier checkpoints")), Not(HasSubstr("iteration 2"))));
}

TEST(FailedSaves, TheLogHasTheRemedyOfTheCause) {
  FailedSaves failed(OnSaveError::kContinue, /*tells=*/true);
  const std::string log = log_of([&] {
    failed.add(2, "checkpoint", "b is full\n  try: another b");
    failed.tell();
    failed.tell();
    failed.forget(); // a later one is durable
  });
  EXPECT_THAT(log, HasSubstr("b is full; earlier checkpoints are unchanged\n  try: another b"));
  EXPECT_EQ(log.find("b is full"), log.rfind("b is full")) << "told once: " << log;
  EXPECT_FALSE(failed.finish());
}

TEST(FailedSaves, OnlyARunThatIsNotAtItsEndCanContinueWithoutIt) {
  FailedSaves failed(OnSaveError::kStop, /*tells=*/true);
  const auto error = [&](int64_t iteration) {
    return test::error_of(
        [&] { failed.add(iteration, "checkpoint", "b is full\n  try: another b"); });
  };
  EXPECT_THAT(error(8), HasSubstr("\n  try: another b, or checkpoint.on_error=continue"));
  failed.run_ends(9);
  EXPECT_THAT(error(8), HasSubstr("checkpoint.on_error=continue")); // is told late
  EXPECT_EQ(error(9), "the checkpoint of iteration 9 was not saved: b is full\n  try: another b");
}

TEST(FailedSaves, AnErrorDoesNotHideWhatWasNotTold) {
  const std::string log = log_of([] {
    try {
      FailedSaves failed(OnSaveError::kContinue, /*tells=*/true);
      failed.add(3, "export", "a is full");
      raise<Error>("the end");
    } catch (const Error&) {
    }
  });
  EXPECT_THAT(log, HasSubstr("the export of iteration 3 was not saved: a is full"));
}

} // namespace
} // namespace pentatron::trainer
