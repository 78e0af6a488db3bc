// Documents, random numbers, filters and statistics of tasks, by hand or as Python gives them.
#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/data/regex.h"
#include "pentatron/evaluation/tasks/csv.h"
#include "pentatron/evaluation/tasks/python_random.h"
#include "pentatron/evaluation/tasks/report.h"
#include "tests/support/files.h"
#include "tests/support/log_capture.h"

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
  EXPECT_EQ(parse_csv("a,a,a.1,a\n1,2,3,4\n", {}, ',', "")[0].dump(), // as pandas
            R"({"a":"1","a.2":"2","a.1":"3","a.3":"4"})");
  EXPECT_THROW(parse_csv("a,b\n1\n", {}, ',', "a.csv"), DataError);
  EXPECT_THROW(parse_csv("a\n\"b", {}, ',', "a.csv"), DataError);
}

/// As pandas.read_csv 2 and pyarrow.
TEST(Csv, CellsAreWhatAllOfTheirColumnAre) {
  Documents rows = parse_csv("a,b,c,d,e,f,g,h,i,j,k\n1,1.5,True,x,,007, 5,NA,1e3,TRUE,+4\n"
                             "2,,,\"1\",,8,6 ,1,2.,false,5\n3,2,False,None,,9,7,2,.5,true,-6\n",
                             {}, ',', "a.csv");
  infer_cell_types(rows);
  EXPECT_EQ(rows[0].dump(), R"({"a":1,"b":1.5,"c":true,"d":"x","e":null,"f":7,"g":5,"h":null,)"
                            R"("i":1000.0,"j":true,"k":4})");
  EXPECT_EQ(rows[1].dump(), R"({"a":2,"b":null,"c":null,"d":"1","e":null,"f":8,"g":6,"h":1.0,)"
                            R"("i":2.0,"j":false,"k":5})");
  EXPECT_EQ(rows[2].dump(), R"({"a":3,"b":2.0,"c":false,"d":null,"e":null,"f":9,"g":7,"h":2.0,)"
                            R"("i":0.5,"j":true,"k":-6})");
  for (const char* mixed : {"x", "True", "1e", "0x1", "1_0", "--1", "+", ".", "nan(1)", "1 2",
                            "99999999999999999999x", "+-1"}) {
    Documents column = parse_csv(std::string("c,d\n1,\n") + mixed + ",\n", {}, ',', "a.csv");
    infer_cell_types(column);
    EXPECT_EQ(column[0]["c"], "1") << mixed;
    EXPECT_EQ(column[1]["c"], mixed);
  }
}

/// As datasets.load_dataset("json") of datasets 4.
TEST(Json, NumbersOfAColumnHaveOneType) {
  Documents rows = {
      Document::parse(R"({"a":2,"b":1,"c":[1,2.5],"d":{"x":1},"e":1,"f":null,"g":[]})"),
      Document::parse(R"({"a":0.5,"b":2,"c":[3,4],"d":{"x":2.5},"e":"1","f":2,"g":[1]})"),
      Document::parse(R"({"a":-3,"b":3,"c":[],"d":{"x":3},"e":1.5,"f":1.5,"g":[2]})")};
  std::vector<Document*> all;
  for (Document& row : rows) all.push_back(&row);
  unite_numbers(all);
  EXPECT_EQ(rows[0].dump(), R"({"a":2.0,"b":1,"c":[1.0,2.5],"d":{"x":1.0},"e":1,"f":null,"g":[]})");
  EXPECT_EQ(rows[1].dump(),
            R"({"a":0.5,"b":2,"c":[3.0,4.0],"d":{"x":2.5},"e":"1","f":2.0,"g":[1]})");
  EXPECT_EQ(rows[2].dump(), R"({"a":-3.0,"b":3,"c":[],"d":{"x":3.0},"e":1.5,"f":1.5,"g":[2]})");
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
  EXPECT_EQ(data::Regex("x{,2}y").replace("xxxy xy y", "-"), "x- - -");
  EXPECT_EQ(data::Regex("x{,}y[{,2}]\\{,2}").replace("xxy2{,2}z", "-"), "-z");
  EXPECT_EQ(data::Regex("[]{,1}]+").replace("a{]1}b", "-"), "a-b");
  EXPECT_THROW(data::Regex("("), DataError);
  EXPECT_THROW(data::Regex("a").replace("a", "\\2"), DataError);
}

TEST(Filter, TakesTheMatchThatIsAskedFor) {
  FilterSpec filter{.name = "last",
                    .steps = {{.function = "regex",
                               .regex_pattern = "(-?[$0-9.,]{2,})|(-?[0-9]+)",
                               .group_select = -1}}};
  EXPECT_EQ(filtered(filter, "7 apples, or 12 ?", {}), "12");
  EXPECT_EQ(filtered(filter, "none", {}), "[invalid]");
  filter.steps = {{.function = "remove_whitespace"}, {.function = "lowercase"}};
  EXPECT_EQ(filtered(filter, " Ä B \n", {}), "ä b");
  filter.steps = {
      {.function = "take_first_k"}, {.function = "majority_vote"}, {.function = "uppercase"}};
  EXPECT_EQ(filtered(filter, "\u00e4b", {}), "\u00c4B");
  filter.steps = {{.function = "map", .mapping = {{"A", "0"}}, .default_value = "none"}};
  EXPECT_EQ(filtered(filter, "A", {}), "0");
  EXPECT_EQ(filtered(filter, "B", {}), "none");
  filter.steps[0].default_value.reset();
  EXPECT_THROW(filtered(filter, "B", {}), DataError);
}

/// The letters are those of MultiChoiceRegexFilter of lm-eval 0.4.13.
TEST(Filter, FindsTheLetterOfAChoice) {
  const FilterSpec filter{.name = "letter",
                          .steps = {{.function = "multi_choice_regex",
                                     .regex_pattern = "(\\([A-Z]\\))",
                                     .regexes_to_ignore = {"the "},
                                     .ignore_case = true,
                                     .ignore_punctuation = true}}};
  const Document document = {
      {"choices", {"Guilty", "Guilty of (Romance)", "\u00c9t\u00e9!", "a+b"}}};
  for (const auto& [text, letter] : std::vector<std::pair<const char*, const char*>>{
           {"It is (C), not (D)", "(C)"},
           {"the verdict: guilty of the romance!", "(B)"},
           {"guilty of THE romance", "(A)"},
           {"GUILTY.", "(A)"},
           {"an \u00e9t\u00e9", "(C)"},
           {"a+b", "(D)"},
           {"my answer: D", "(D)"},
           {"my answer is D", "[invalid]"}})
    EXPECT_EQ(filtered(filter, text, document), letter) << text;
  EXPECT_THROW(filtered(filter, "x", {{"question", "y"}}), DataError);
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

TEST(Scores, TargetsAreComparedAsPythonWritesThem) {
  Task task{.name = "t"};
  task.output_type = OutputType::kGenerate;
  task.metrics = {{.name = "exact_match"}};
  const auto answer = [](const char* text) { return std::vector<Answer>{{.text = text}}; };
  const TaskScores scores = score_items(
      task, {item_of(true), item_of(false), item_of(nullptr), item_of(2), item_of(0.5)},
      {answer("True"), answer("False"), answer("None"), answer("2"), answer("0.5")}, 1000);
  EXPECT_EQ(scores.scores.at(0).value, 1);
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

/// As brier_score of lm-eval 0.4.13.
TEST(Scores, BrierScoreIsTheDistanceOfProbabilities) {
  Task task{.name = "t"};
  task.output_type = OutputType::kMultipleChoice;
  task.metrics = {{.name = "brier_score", .aggregation = Aggregation::kBrier}};
  std::vector<Item> items = {item_of(1, {"a", "b", "c"}), item_of("a", {"a", "b", "c"})};
  const std::vector<Answer> answers = {
      {.loglikelihood = -1}, {.loglikelihood = -2.5}, {.loglikelihood = -4}};
  const TaskScores scores = score_items(task, items, {answers, answers}, 1000);
  EXPECT_NEAR(scores.scores[0].value, 0.688531788990614, 1e-12);
  EXPECT_FALSE(scores.scores[0].stderr_);
  items[1].choices = {"a", "b"};
  EXPECT_THROW(score_items(task, items, {answers, {answers[0], answers[1]}}, 0), DataError);
  items[1].target = "z";
  EXPECT_THROW(score_items(task, items, {answers, answers}, 0), DataError);
}

TEST(Scores, F1IsForTwoClasses) {
  Task task{.name = "t"};
  task.output_type = OutputType::kMultipleChoice;
  task.metrics = {{.name = "f1", .aggregation = Aggregation::kF1}};
  const std::vector<std::string> choices = {"a", "b", "c"};
  const std::vector<Answer> last = {
      {.loglikelihood = -3}, {.loglikelihood = -2}, {.loglikelihood = -1}};
  const auto message = [&](const std::vector<Item>& items) {
    return message_of([&] {
      check_targets(task, items);
      score_items(task, items, std::vector<std::vector<Answer>>(items.size(), last), 0);
    });
  };
  EXPECT_THAT(message({item_of(0, choices), item_of(1, choices)}),
              AllOf(HasSubstr("task t: metric: f1 is for the classes 0 and 1"),
                    HasSubstr("are 0, 1, 2\n  try: metric: acc")));
  EXPECT_THAT(message({item_of(0, choices)}), HasSubstr("are 0, 2"));
  EXPECT_EQ(message({item_of(1, choices)}), "");
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
  EXPECT_THAT(message, HasSubstr("task mine: the target of the first document is \"labell\""));
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

/// Standard errors are pooled_sample_stderr and unweighted_mean_stderr of lm-eval 0.4.13.
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
  EXPECT_NEAR(*groups[1].scores[0].stderr_, std::sqrt(0.01 + 0.04) / 2, 1e-15); // of the mean
}

TEST(Groups, HaveTheFiltersOfTheTasksThatHaveTheMetric) {
  const TaskScores a{.task = "a",
                     .samples = 10,
                     .scores = {{.metric = "acc", .value = 0.5, .stderr_ = 0.1},
                                {.metric = "exact_match", .filter = "m", .value = 0.25}}};
  const TaskScores b{
      .task = "b",
      .samples = 30,
      .scores = {{.metric = "exact_match", .filter = "m", .value = 0.75, .stderr_ = 0.2},
                 {.metric = "exact_match", .filter = "n", .value = 1}}};
  const Group all{.name = "g",
                  .members = {"a", "b"},
                  .metrics = {{.metric = "exact_match"}, {.metric = "acc"}, {.metric = "f1"}}};
  const Group one{
      .name = "h", .members = {"a", "b"}, .metrics = {{.metric = "exact_match", .filter = "n"}}};
  const test::LogCapture log(false);
  const std::vector<TaskScores> groups = score_groups({all, one}, {a, b});
  ASSERT_EQ(groups[0].scores.size(), 3U);
  EXPECT_EQ(groups[0].scores[0].filter, "m");
  EXPECT_NEAR(groups[0].scores[0].value, 0.625, 1e-15);
  EXPECT_EQ(groups[0].scores[1].filter, "n");
  EXPECT_NEAR(groups[0].scores[1].value, 1, 1e-15);
  EXPECT_NEAR(groups[0].scores[2].stderr_.value_or(0), 0.1, 1e-15) << "of the only task with it";
  ASSERT_EQ(groups[1].scores.size(), 1U);
  EXPECT_EQ(groups[1].scores[0].filter, "n");
  EXPECT_THAT(log.text(), HasSubstr("group g: none of its tasks has f1"));
}

} // namespace
} // namespace pentatron::evaluation
