#include "pentatron/data/tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "pentatron/base/json.h"
#include "pentatron/data/sft/chat_text.h"
#include "tests/support/files.h"

namespace pentatron::data {
namespace {

using testing::HasSubstr;

std::string text_of_template(const std::string& source, const OrderedJson& variables,
                             const std::tm* now = nullptr) {
  return tokenizer::ChatTemplate(source).render(variables, nullptr, now);
}

/// The texts are those of Jinja 3.1.6 with the rules of transformers.
TEST(ChatTemplate, ComputesAsJinja) {
  const Json cases =
      read_json(std::filesystem::path(PENTATRON_TEST_DATA) / "chat_expressions.json");
  ASSERT_GE(cases.size(), 60u);
  for (const Json& one : cases)
    EXPECT_EQ(text_of_template(one[0], OrderedJson::object()), one[1]) << one[0];
}

TEST(ChatTemplate, KnowsThatThereAreNoTools) {
  const char* const source = "{{ tools is defined }}{{ tools is none }}{{ documents is none }}";
  EXPECT_EQ(text_of_template(source, OrderedJson::object()), "TrueTrueTrue");
  EXPECT_EQ(text_of_template(source, {{"tools", {1}}}), "TrueFalseTrue");
}

constexpr const char* kDated = "{% if strftime_now is defined %}{% set day = strftime_now('%d %b "
                               "%Y, %A') %}{% else %}{% set day = '26 Jul 2024' %}{% endif %}{{ "
                               "day }}";

TEST(ChatTemplate, PrintsTheDateThatIsGiven) {
  const auto date = tokenizer::read_date("2024-02-29");
  ASSERT_TRUE(date);
  EXPECT_EQ(text_of_template(kDated, OrderedJson::object(), &*date), "29 Feb 2024, Thursday");
  EXPECT_EQ(text_of_template(kDated, OrderedJson::object()), "26 Jul 2024");
  const std::tm now = tokenizer::local_time();
  EXPECT_GE(std::stoi(text_of_template("{{ strftime_now('%Y') }}", OrderedJson::object(), &now)),
            2026);
}

TEST(ChatTemplate, ReadsDatesThatExist) {
  for (const char* wrong : {"2023-02-29", "2024-13-01", "2024-1-01", "2024-01-00", "0000-01-01",
                            "2024-01-1x", "2024/01/01", "", "2024-01-011"})
    EXPECT_FALSE(tokenizer::read_date(wrong)) << wrong;
}

TEST(ChatTemplate, OfTrainingPrintsNoOtherDate) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "chat_template.jinja") << kDated << "{{ messages[0].content }}";
  const OrderedJson messages = {{{"role", "user"}, {"content", "Hi"}}};
  const auto text = [&](const std::string& date) {
    return open_chat_template(folder.path(), date)(messages, nullptr, ChatEnd::kAnswer).text;
  };
  EXPECT_EQ(text(""), "26 Jul 2024Hi");
  EXPECT_EQ(text("2025-01-31"), "31 Jan 2025, FridayHi");
}

} // namespace
} // namespace pentatron::data
