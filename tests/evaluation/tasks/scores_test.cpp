// Documents, random numbers, filters and statistics of tasks, by hand or as Python gives them.
#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/data/regex.h"
#include "pentatron/evaluation/tasks/documents.h"
#include "pentatron/evaluation/tasks/python_random.h"
#include "pentatron/evaluation/tasks/report.h"

namespace pentatron::evaluation {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Csv, CellsMayHaveQuotesAndLines) {
  const Documents rows =
      parse_csv("a,b\r\n\"x, \"\"y\"\"\",1\n\"two\nlines\",\n", {}, ',', "a.csv");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].dump(), R"({"a":"x, \"y\"","b":"1"})");
  EXPECT_EQ(rows[1].dump(), R"({"a":"two\nlines","b":""})");
  EXPECT_EQ(parse_csv("x;1", {"p", "q"}, ';', "").size(), 1u);
  EXPECT_THROW(parse_csv("a,b\n1\n", {}, ',', "a.csv"), DataError);
  EXPECT_THROW(parse_csv("a\n\"b", {}, ',', "a.csv"), DataError);
}

TEST(PythonRandom, GivesTheNumbersOfPython) {
  PythonRandom zero(0);
  EXPECT_EQ(zero.real(), 0.8444218515250481);
  EXPECT_EQ(zero.real(), 0.7579544029403025);
  EXPECT_THAT(zero.sample(10, 4), ElementsAre(6, 0, 4, 7));
  EXPECT_THAT(zero.sample(1000, 7), ElementsAre(497, 414, 940, 802, 849, 310, 991));
  EXPECT_EQ(zero.below(5), 3u);
  PythonRandom wide((uint64_t{1} << 40) + 7);
  EXPECT_EQ(wide.real(), 0.6137037779936511);
}

TEST(Regex, FindsAndReplacesAsPython) {
  const data::Regex number("(-?[$0-9.,]{2,})|(-?[0-9]+)");
  const auto found = number.find_all("it is 7 or $1,200.");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0], ElementsAre("", "7"));
  EXPECT_THAT(found[1], ElementsAre("$1,200.", ""));
  EXPECT_EQ(data::Regex("x*").replace("abxd", "-"), "-a-b--d-"); // as CPython 3.7 and later
  EXPECT_EQ(data::Regex("\\(\\s*(.*?)\\s*\\)").replace("( é ) (b)", "<\\1>"), "<é> <b>");
  EXPECT_EQ(data::Regex("a").replace("aaa", "b", 2), "bba");
  EXPECT_THROW(data::Regex("("), DataError);
  EXPECT_THROW(data::Regex("a").replace("a", "\\2"), DataError);
}

TEST(Filter, TakesTheMatchThatIsAskedFor) {
  FilterSpec filter{.name = "last",
                    .steps = {{.function = "regex",
                               .regex_pattern = "(-?[$0-9.,]{2,})|(-?[0-9]+)",
                               .group_select = -1}}};
  EXPECT_EQ(filtered(filter, "7 apples, or 12 ?"), "12");
  EXPECT_EQ(filtered(filter, "none"), "[invalid]");
  filter.steps = {{.function = "remove_whitespace"}, {.function = "lowercase"}};
  EXPECT_EQ(filtered(filter, " Ä B \n"), "ä b");
}

Item item_of(const Document& target, std::vector<std::string> choices = {}) {
  return {.document = {}, .requests = {}, .choices = std::move(choices), .target = target};
}

TEST(Scores, TextsAreComparedAsTheMetricSays) {
  Task task{.name = "t"};
  task.output_type = OutputType::kGenerate;
  task.metrics = {{.name = "exact_match",
                   .regexes_to_ignore = {",", "\\$", "(?s).*#### ", "\\.$"},
                   .ignore_case = true}};
  const std::vector<Item> items = {item_of("so it is\n#### 1,200"), item_of("Yes"),
                                   item_of(Document{"a", "b"}), item_of("x!")};
  const auto answer = [](const char* text) { return std::vector<Answer>{{.text = text}}; };
  const TaskScores scores =
      score_items(task, items, {answer("$1200."), answer("yes"), answer("b"), answer("x")}, 1000);
  ASSERT_EQ(scores.scores.size(), 1u);
  EXPECT_DOUBLE_EQ(scores.scores[0].value, 0.75);
  EXPECT_DOUBLE_EQ(*scores.scores[0].stderr_, 0.25);
  EXPECT_THAT(score_table({scores}), HasSubstr("exact_match  0.7500  0.2500"));
}

TEST(Scores, LabelsMayBeNumbersTextsOrSeveral) {
  Task task{.name = "t"};
  task.output_type = OutputType::kMultipleChoice;
  task.metrics = {{.name = "acc"}, {.name = "acc_norm"}};
  const std::vector<std::string> choices = {"é", "four"};
  const std::vector<Item> items = {item_of(0, choices), item_of("four", choices),
                                   item_of(Document{0, 1}, choices), item_of(7, choices),
                                   item_of(true, choices)};
  // The second choice is less likely, but more so by the character.
  const std::vector<Answer> answers = {{.loglikelihood = -2}, {.loglikelihood = -4}};
  const TaskScores scores =
      score_items(task, items, std::vector<std::vector<Answer>>(5, answers), 0);
  EXPECT_DOUBLE_EQ(scores.scores[0].value, 2.0 / 5);
  EXPECT_DOUBLE_EQ(scores.scores[1].value, 3.0 / 5);
  EXPECT_FALSE(scores.scores[0].stderr_);
}

TEST(Scores, ATargetThatNamesNoChoiceOfAnyDocumentIsRefused) {
  Task task{.name = "mine"};
  task.output_type = OutputType::kMultipleChoice;
  std::vector<Item> items(2);
  for (Item& item : items) {
    item.document = {{"question", "a"}, {"label", 1}};
    item.choices = {"no", "yes"};
    item.target = "labell";
  }
  std::string message;
  try {
    check_targets(task, items);
  } catch (const DataError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, AllOf(HasSubstr("task mine: doc_to_target gives \"labell\""),
                             HasSubstr("question, label")));
  items[1].target = "yes"; // some documents may have none
  EXPECT_NO_THROW(check_targets(task, items));
  items[1].target = Document::array({-100, 1});
  EXPECT_NO_THROW(check_targets(task, items));
}

TEST(Statistics, F1AndMatthewsAreThoseOfScikitLearn) {
  const std::vector<MetricValue> values = {{1, 1}, {0, 1}, {1, 0}, {1, 1}, {0, 0}, {1, 1}};
  EXPECT_NEAR(aggregate(Aggregation::kF1, values), 0.75, 1e-15);
  EXPECT_NEAR(aggregate(Aggregation::kMatthews, values), 0.25, 1e-15);
  EXPECT_EQ(aggregate(Aggregation::kMatthews, {{1, 1}, {1, 1}}), 0);
  EXPECT_EQ(aggregate(Aggregation::kF1, {{0, 0}}), 0);
}

TEST(Groups, MeansAreWeightedBySize) {
  TaskScores a{
      .task = "a", .samples = 10, .scores = {{.metric = "acc", .value = 0.5, .stderr_ = 0.1}}};
  TaskScores b{
      .task = "b", .samples = 30, .scores = {{.metric = "acc", .value = 0.7, .stderr_ = 0.2}}};
  const Group weighted{.name = "g", .members = {"a", "b"}, .metrics = {{.metric = "acc"}}};
  const Group plain{
      .name = "h", .members = {"g"}, .metrics = {{.metric = "acc", .weight_by_size = false}}};
  const std::vector<TaskScores> groups = score_groups({weighted, plain}, {a, b});
  EXPECT_NEAR(groups[0].scores[0].value, 0.65, 1e-15);
  EXPECT_NEAR(*groups[0].scores[0].stderr_, std::sqrt((9 * 0.01 * 10 + 29 * 0.04 * 30) / 38 / 40),
              1e-15);
  EXPECT_NEAR(groups[1].scores[0].value, 0.6, 1e-15);
  EXPECT_NEAR(*groups[1].scores[0].stderr_, std::sqrt(0.05) / 2, 1e-15);
}

} // namespace
} // namespace pentatron::evaluation
