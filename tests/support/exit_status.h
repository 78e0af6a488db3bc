/// The exit status of a test program.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pentatron::test {

/// 0 or 1 as GoogleTest; 77, which ctest shows as skipped, if there was nothing but skipped tests.
inline int run_all_tests() {
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  const bool all_skipped =
      tests.test_to_run_count() > 0 && tests.skipped_test_count() == tests.test_to_run_count();
  return status == 0 && all_skipped ? 77 : status;
}

} // namespace pentatron::test
