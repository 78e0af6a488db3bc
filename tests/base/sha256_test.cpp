#include <gtest/gtest.h>

#include "pentatron/base/sha256.h"

namespace pentatron {
namespace {

TEST(Sha256, EqualsTheExamplesOfTheStandardAtEveryPadding) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // Lengths around the end of a block, from Python's hashlib over their concatenation.
  std::string all;
  for (size_t n = 50; n < 70; ++n) all += sha256(std::string(n, '\xe4'));
  EXPECT_EQ(sha256(all), "a825491724784f8bb16af22c3001287a20f69535965db54d7dd3fb14da66f8fd");
}

} // namespace
} // namespace pentatron
