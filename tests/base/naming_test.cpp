#include "pentatron/base/naming.h"

#include <gtest/gtest.h>

namespace pentatron {
namespace {

TEST(Naming, PutsTheNameBeforeTheValueThatTheUserTyped) {
  struct Case {
    const char *message, *named;
  };
  for (const Case& c : {Case{"a does not exist", "--in a does not exist"},
                        {"a: line 1 is bad", "--in a: line 1 is bad"},
                        {"--in a is bad", "--in a is bad"},
                        {"ab is bad", "--in a: ab is bad"},
                        {"a/b is bad\n  try: c", "--in a: a/b is bad\n  try: c"},
                        {"it is bad", "--in a: it is bad"}})
    EXPECT_EQ(with_name("--in ", "a", c.message), c.named);
  EXPECT_EQ(with_name("--in ", "a", "a is bad", "b"), "--in a is bad\n  try: b");
  EXPECT_EQ(with_name("--in ", "a", "a is bad\n  try: c", "b"), "--in a is bad\n  try: c");
}

TEST(Naming, KeepsTheKindOfTheErrorAndWhatTheWorkReturns) {
  EXPECT_EQ(naming("--in ", "a", [] { return 3; }), 3);
  EXPECT_THROW(naming("", "", [] { throw DataError("a"); }), DataError);
  EXPECT_THROW(naming("", "", [] { throw CheckpointError("a"); }), CheckpointError);
  EXPECT_THROW(naming("", "", [] { throw Error("a"); }), Error);
  try {
    naming("--in ", "a", [] { throw ConfigError("--other b is bad"); });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "--other b is bad");
  }
}

} // namespace
} // namespace pentatron
