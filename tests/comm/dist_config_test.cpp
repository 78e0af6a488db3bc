#include "pentatron/comm/dist_config.h"

#include "pentatron/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pentatron::comm {
namespace {

std::string violations_of(const char* assignment) {
  DistConfig dist;
  config::Violations violations;
  config::apply_override(dist, assignment, violations);
  config::validate(dist, violations);
  return violations.text();
}

TEST(DistConfig, TakesItsDefaultsAndRefusesWhatCannotWork) {
  EXPECT_EQ(violations_of("timeout_s=600"), "");
  EXPECT_THAT(violations_of("timeout_s=0"), testing::HasSubstr("timeout_s"));
  EXPECT_THAT(violations_of("heartbeat_s=0"), testing::HasSubstr("heartbeat_s"));
  EXPECT_THAT(violations_of("heartbeat_s=61"), testing::HasSubstr("heartbeat_s"));
  EXPECT_THAT(violations_of("timeout_s=1.5"),
              testing::AllOf(testing::HasSubstr(
                                 "timeout_s=1.5 is shorter than two heartbeats of heartbeat_s=1"),
                             testing::HasSubstr("try: timeout_s=5")));
}

} // namespace
} // namespace pentatron::comm
