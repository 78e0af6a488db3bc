// Requests and values of many variants of a task are those of lm-eval
// (tests/data/evaluation/make_prompts.py).
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "pentatron/evaluation/tasks/read_tasks.h"
#include "pentatron/evaluation/tasks/scores.h"
#include "tests/support/files.h"
#include "tests/support/log_capture.h"

namespace pentatron::evaluation {
namespace {

/// As make_prompts.py answers.
std::vector<std::vector<Answer>> answers_to(const std::vector<Item>& items, const Document& texts) {
  std::vector<std::vector<Answer>> answers;
  for (size_t i = 0; i < items.size(); ++i) {
    answers.emplace_back();
    for (size_t j = 0; j < items[i].requests.size(); ++j)
      answers.back().push_back({.loglikelihood = -static_cast<double>((7 * i + 5 * j) % 11) - 0.5,
                                .greedy = (i + j) % 2 == 0,
                                .text = texts[i].get<std::string>()});
  }
  return answers;
}

Document requests_of(const std::vector<Item>& items) {
  Document all = Document::array();
  for (const Item& item : items) {
    Document requests = Document::array();
    for (const Request& request : item.requests)
      requests.push_back(request.kind == Request::Kind::kRolling
                             ? Document{request.continuation, ""}
                             : Document{request.context, request.continuation});
    all.push_back(requests);
  }
  return all;
}

void expect_values(const Document& expected, const Document& items) {
  for (const auto& [name, values] : expected.items()) {
    const std::string metric = name.substr(0, name.find(',')),
                      key = name.ends_with(",none") ? metric : name;
    for (size_t i = 0; i < values.size(); ++i) {
      const Document& item = items[i];
      if (metric == "word_perplexity" || metric == "byte_perplexity" || metric == "bits_per_byte")
        EXPECT_EQ((Document{item["loglikelihood"],
                            item[metric == "word_perplexity" ? "words" : "bytes"]}),
                  values[i])
            << name << " of document " << i;
      else
        EXPECT_EQ(item[key], values[i]) << name << " of document " << i;
    }
  }
}

Document reference() {
  return Document::parse(
      std::ifstream(std::string(PENTATRON_TEST_DATA) + "/evaluation/prompts.json"));
}

TEST(Prompts, AreThoseOfLmEval) {
  const Document cases = reference();
  ASSERT_GE(cases["cases"].size(), 60U);
  const test::LogCapture log(false);
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "test.jsonl") << cases["documents"].get<std::string>();
  for (const Document& one : cases["cases"]) {
    SCOPED_TRACE(one["yaml"].get<std::string>());
    std::ofstream(folder.path() / "t.yaml") << one["yaml"].get<std::string>();
    const TaskList list =
        read_tasks({.names = {(folder.path() / "t.yaml").string()}, .data_path = {}});
    const std::vector<Item> items = make_items(list.tasks.at(0), {});
    EXPECT_EQ(requests_of(items), one["requests"]);
    const TaskScores scores =
        score_items(list.tasks[0], items, answers_to(items, cases["answers"]), 0);
    expect_values(one["values"], scores.items);
  }
}

TEST(Filter, FindsTheLettersOfLmEval) {
  const Document letters = reference()["letters"];
  ASSERT_EQ(letters.size(), 60U);
  for (const Document& one : letters) {
    const Document& step = one["step"];
    const FilterSpec filter{.name = "letter",
                            .steps = {{.function = "multi_choice_regex",
                                       .regex_pattern = step["regex_pattern"],
                                       .group_select = step["group_select"],
                                       .regexes_to_ignore = step["regexes_to_ignore"],
                                       .ignore_case = step["ignore_case"],
                                       .ignore_punctuation = step["ignore_punctuation"]}}};
    EXPECT_EQ(filtered(filter, one["answer"], {{"choices", one["choices"]}}), one["letter"]) << one;
  }
}

} // namespace
} // namespace pentatron::evaluation
