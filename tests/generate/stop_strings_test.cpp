// Stop strings against a search in the whole text, however it is cut into pieces.
#include "pentatron/generate/stop_strings.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace pentatron::generate {
namespace {

TEST(StopStrings, EndTheTextWhereTheyBegin) {
  StopStrings stops({"END", "\n\n"});
  EXPECT_EQ(stops.push("a E"), "a ");
  EXPECT_EQ(stops.push("N"), "");
  EXPECT_FALSE(stops.found());
  EXPECT_EQ(stops.push("joy EN"), "ENjoy ");
  EXPECT_EQ(stops.push("D of it"), "");
  EXPECT_TRUE(stops.found());
  EXPECT_EQ(stops.push("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopStrings, WithoutOneTheTextIsWhole) {
  StopStrings none({}), empty({""}), other({"xyz"});
  for (StopStrings* stops : {&none, &empty, &other}) {
    std::string shown = stops->push("abc xy");
    shown += stops->push("w");
    shown += stops->finish();
    EXPECT_EQ(shown, "abc xyw");
    EXPECT_FALSE(stops->found());
  }
}

TEST(StopStrings, AnyCutGivesWhatASearchInTheWholeTextGives) {
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    const auto word = [&](int most) {
      std::string text;
      for (auto n = static_cast<int>(random() % static_cast<unsigned>(most)); n >= 0; --n)
        text += static_cast<char>('a' + random() % 2);
      return text;
    };
    const std::vector<std::string> list = {word(4), word(5)};
    const std::string text = word(20);
    // The stop string that is complete first ends the text; of several, that which begins first.
    size_t end = std::string::npos;
    for (size_t n = 1; n <= text.size() && end == std::string::npos; ++n)
      for (const std::string& stop : list)
        end = std::min(end, std::string_view(text).substr(0, n).find(stop));
    StopStrings stops(list);
    std::string shown;
    for (const char c : text) shown += stops.push(std::string(1, c));
    EXPECT_EQ(stops.found(), end != std::string::npos);
    shown += stops.finish();
    EXPECT_EQ(shown, text.substr(0, end)) << text << " " << list[0] << " " << list[1];
  }
}

} // namespace
} // namespace pentatron::generate
