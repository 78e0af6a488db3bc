// Errors of task files and their data name the value, the conflict and what to write instead.
#include <functional>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/evaluation/tasks/small_task.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/log_capture.h"

namespace pentatron::evaluation {
namespace {

using test::SmallTask;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

struct BadTask {
  std::vector<std::string> lines; ///< of the task file
  std::string cause, remedy;
  std::string data = {}; ///< of d.csv and d.jsonl
};

void expect_errors(const std::vector<BadTask>& cases) {
  const SmallTask folder;
  for (const BadTask& one : cases) {
    folder.write("d.csv", one.data);
    folder.write("d.jsonl", one.data);
    const std::string error = folder.error(one.lines);
    EXPECT_THAT(error, AllOf(HasSubstr(one.cause), EndsWith("\n  try: " + one.remedy)))
        << one.lines[0];
  }
}

const std::string kGenerate = "output_type: generate_until",
                  kNone = "doc_to_choice:", kMore = "doc_to_target: more";

std::vector<std::string> filters(const std::string& step) {
  return {kGenerate, kNone, kMore, "filter_list: [{name: a, filter: [" + step + "]}]"};
}

TEST(TaskErrors, OfFields) {
  expect_errors({
      {{"doc_to_target: \"{{labl}}\""}, "prints 'labl', which is undefined", "{{label}}"},
      {{"doc_to_text: \"{{zz}}\""},
       "document 0 of task small: small.yaml: doc_to_text prints 'zz', which is undefined",
       "a template such as \"{{question}}\" of the columns question, label, words, more"},
      {{"doc_to_text: \"{{question\""},
       "doc_to_text: a block has no end",
       "a Jinja template, such as \"{{question}}\""},
      {{"doc_to_text: [a]"},
       R"(doc_to_text: ["a"] is not a template or a column)",
       "doc_to_text: \"{{text}}\""},
      {{"doc_to_text: words"},
       R"(doc_to_text gives ["no","yes"], which is not a text)",
       "doc_to_text: a template that gives a text, such as \"{{words | join(' ')}}\""},
      {{"doc_to_target: labl"},
       "doc_to_target: labl is neither a column nor a choice",
       "doc_to_target: label"},
      {{"doc_to_target: 7"},
       "the target of the first document is 7",
       "the text of a choice, or its number from 0 to 1"},
      {{"doc_to_choice: wrds"},
       "gives 'wrds', which is neither a column nor a list",
       "one of the columns question, label, words, more"},
      {{"doc_to_choice: question"},
       "gives \"a b\", which is not a list of strings",
       "a column that has a list, or a template such as \"{{[option1, option2]}}\""},
      {{"doc_to_choice: \"{{question}}\""},
       "gives 'a b', which is not a list of strings",
       "a template that writes a list, such as \"{{[option1, option2]}}\""},
      {{"doc_to_choice: \"{{[label, label]}}\""},
       "gives a list with 1, which is not a string",
       "choices that are strings, as of the template \"{{choices|map('string')|list}}\""},
      {{"doc_to_choice: [1, b]"},
       "doc_to_choice: [1,\"b\"] is not a list of strings",
       R"(doc_to_choice: ["1", "b"])"},
      {{"doc_to_choice: 3"},
       "doc_to_choice: 3 is not a list of strings, a template or a column",
       R"(doc_to_choice: ["no", "yes"])"},
      {{"description: 5"}, "description: 5 is not a string", "description: \"5\""},
      {{"test_split: [test]"}, "is not a string", "test_split: \"test\""},
      {{"num_fewshot: '2'"}, "num_fewshot: \"2\" is not an integer", "num_fewshot: 2"},
      {{"test_split: tset"}, "test_split: tset is not among the splits", "test_split: test"},
      {{"class: utils.T"},
       "class is not supported: it names a Python class",
       "a task of templates"},
  });
}

TEST(TaskErrors, OfNullTexts) {
  const std::string file = "dataset_kwargs: {data_files: {test: d.jsonl}}";
  expect_errors({
      {{file, "doc_to_text: q"},
       "document 1 of task small: doc_to_text gives null, which is not a text",
       "doc_to_text: a template that gives a text, such as \"{{q or ''}}\"",
       "{\"q\": \"a\", \"label\": 1}\n{\"q\": null, \"label\": 1}\n"},
      {{file, "doc_to_text: q"},
       "document 1 of task small: doc_to_target gives null",
       "documents that each have a target",
       "{\"q\": \"a\", \"label\": 1}\n{\"q\": \"b\"}\n"},
      {{file, "output_type: loglikelihood_rolling", kNone, "doc_to_text: ''", "doc_to_target: q"},
       "doc_to_target gives null, which is not a text",
       "doc_to_target: a template that gives a text, such as \"{{q or ''}}\"",
       "{\"q\": null}\n"},
  });
}

TEST(TaskErrors, OfSections) {
  expect_errors({
      {{"fewshot_config: first_n"},
       "\"first_n\" is not a mapping of keys to values",
       "fewshot_config: {sampler: first_n}"},
      {{"dataset_kwargs: d.jsonl"},
       "\"d.jsonl\" is not a mapping",
       "dataset_kwargs: {data_files: {test: FILE.jsonl}}"},
      {{"dataset_kwargs: {data_file: a}"}, "the key data_file is not known", "data_files"},
      {{"dataset_path:"},
       "dataset_path is missing",
       "dataset_path: json, csv or parquet, and dataset_kwargs: {data_files: {test: FILE.jsonl}}"},
      {{"dataset_kwargs: {data_files: {test: []}}"},
       "data_files: test names no file",
       "data_files: {test: FILE}"},
      {{"dataset_kwargs: {data_files: {test: ''}}"},
       "data_files: \"\" is not a path",
       "data_files: {test: FILE}"},
      {{"dataset_kwargs: {data_files: {test: 'https://a.org/b.jsonl'}}"},
       "https://a.org/b.jsonl is on the network",
       "the path of a downloaded file"},
      {{"dataset_kwargs: {data_files: {test: test.jsonl}, label_files: l.txt}"},
       "label_files: \"l.txt\" does not name a split",
       "label_files: {test: FILE}"},
      {{"metric_list: acc"},
       "metric_list: \"acc\" is not a list of mappings",
       "metric_list: [{metric: acc}]"},
      {{"metric_list: [acc]"}, "is not a list of mappings", "metric_list: [{metric: acc}]"},
      {{"metric_list: []"}, "metric_list is empty", "metric_list: [{metric: acc}]"},
      {{"metric_list: [{aggregation: mean}]"}, "an entry has no key metric", "metric: acc"},
      {{"metric_list: [{metric: acc}, {metric: acc}]"},
       "the metric acc is listed twice",
       "only one of them"},
      {{kGenerate, kNone, kMore, "generation_kwargs: [1]"},
       "[1] is not a mapping",
       "generation_kwargs: {max_gen_toks: 256}"},
      {{kGenerate, kNone, kMore, "generation_kwargs: {num_beams: 4}"},
       "num_beams: 4 is not supported",
       "num_beams: 1"},
      {{kGenerate, kNone, kMore, "generation_kwargs: {temperature: 0.5}"},
       "temperature: 0.5 is not supported",
       "temperature: 0.0, or do_sample: false"},
      {{kGenerate, kNone, kMore, "generation_kwargs: {until: 5}"},
       "until: 5 is not a string",
       "until: [\"5\"]"},
  });
}

TEST(TaskErrors, OfFilters) {
  const std::string regex = "an expression of Python's re, such as regex_pattern: \"([0-9]+)\"";
  expect_errors({
      {filters("{function: regex, regex_pattern: '(ab'}"),
       "small.yaml: filter_list: regex_pattern: the pattern '(ab' is not a supported", regex},
      {filters("{function: multi_choice_regex, regex_pattern: '(ab'}"), "the pattern '(ab'", regex},
      {filters("{function: multi_choice_regex, regexes_to_ignore: ['(ab']}"), "the pattern '(ab'",
       "an expression of Python's re, such as regexes_to_ignore: \"([0-9]+)\""},
      {{kGenerate, kNone, kMore,
        "metric_list: [{metric: exact_match, regexes_to_ignore: ['(ab']}]"},
       "metric_list: regexes_to_ignore: the pattern '(ab'",
       "an expression of Python's re, such as regexes_to_ignore: \"([0-9]+)\""},
      {filters("{function: multi_choice_regex}"), "needs documents with a list 'choices'",
       "function: regex"},
      {filters("take_first"), "filter: [\"take_first\"] is not a list of mappings",
       "filter: [{function: take_first}]"},
      {{kGenerate, kNone, kMore, "filter_list: take_first"},
       "is not a list of mappings",
       "filter_list: [{name: first, filter: [{function: take_first}]}]"},
      {{kGenerate, kNone, kMore, "filter_list: [{name: a}]"},
       "an entry has no key filter",
       "filter: [{function: take_first}]"},
      {{kGenerate, kNone, kMore, "filter_list: [{name: a, filter: []}, {name: a, filter: []}]"},
       "two filters have the name a",
       "name: a_2 for one of them"},
      {{"filter_list: [{name: a, filter: [{function: regex}]}]"},
       "function: regex reads generated text, which output_type: multiple_choice does not give",
       "function: take_first"},
      {{"filter_list: [{name: a, filter: [{function: majority_vote}]}]"},
       "the filter a does not take the first answer",
       "filter: [{function: take_first}]"},
  });
}

TEST(TaskErrors, OfExamples) {
  expect_errors({
      {{"num_fewshot: 1", "fewshot_config: {samples: [5, 6]}"},
       "fewshot_config: samples: [5,6] is not a list of mappings",
       "samples: [{question: \"...\", answer: \"...\"}]"},
      {{"num_fewshot: 1", "fewshot_config: {samples: []}"},
       "samples is an empty list",
       "samples: [{question: \"...\", answer: \"...\"}]"},
      {{"num_fewshot: 1", "fewshot_config: {samples: [{question: a}]}"},
       "task small: the sample {\"question\":\"a\"} of fewshot_config does not have the key label",
       "the key label in each sample"},
      {{"num_fewshot: 1", "fewshot_config: {samples: [{question: a, label: 5}]}"},
       "the target of an example is choice 5, but it has 2 choices",
       "a target from 0 to 1"},
      {{"num_fewshot: 1", "fewshot_split: test", "fewshot_config: {fewshot_indices: [7]}"},
       "fewshot_indices has 7, counted from 0, but there are 3 examples",
       "indices from 0 to 2"},
      {{"fewshot_config: {fewshot_indices: 3}"},
       "fewshot_indices: 3 is not a list of numbers",
       "fewshot_indices: [0, 1]"},
      {{"fewshot_config: {fewshot_indices: [-1]}"},
       "fewshot_indices: [-1] is not a list",
       "fewshot_indices: [0, 1]"},
  });
}

TEST(TaskErrors, OfData) {
  const std::string json = "dataset_kwargs: {data_files: {test: d.jsonl}}",
                    csv = "dataset_kwargs: {data_files: {test: d.csv}}", path = "dataset_path: csv",
                    lines = "an intact d.jsonl, with a JSON object on each line, or a list of "
                            "objects";
  expect_errors({
      {{json},
       "d.jsonl: line 2 is not a JSON object: {\"a\":",
       "an object, such as {\"question\": \"...\"}, as each line of d.jsonl",
       "{\"a\": 1}\n{\"a\":\n"},
      {{json},
       "d.jsonl: line 1 is nested more than 64 levels deep",
       "documents with each key once, and of at most 64 levels",
       "{\"a\": " + std::string(200000, '[') + std::string(200000, ']') + "}\n"},
      {{json},
       "d.jsonl: line 1: the key \"a\" appears twice in one object",
       "documents with each key once, and of at most 64 levels",
       "{\"a\": 1, \"a\": 2}\n"},
      {{json}, "d.jsonl is empty", lines, ""},
      {{json}, "d.jsonl is an empty array", lines, "[]"},
      {{json}, "d.jsonl is not a valid JSON array", lines, "[{\"a\": 1},"},
      {{json}, "d.jsonl: line 1 is not UTF-8 at its byte 6", lines, "{\"a\":\"\xff\"}\n"},
      {{json}, "has no documents", "a file with documents", "\n\n"},
      {{path, csv},
       "d.csv: line 3 has 1 cells, but there are 2 columns: a, b",
       "a cell for each column, or another delimiter in dataset_kwargs",
       "a,b\n1,2\n3\n"},
      {{path, csv},
       "d.csv: line 2 has 3 cells, but there are 2 columns",
       "quotation marks around a cell that contains the delimiter, or another delimiter in "
       "dataset_kwargs",
       "a,b\n1,2,3\n"},
      {{path, csv},
       "d.csv: the quoted cell in line 2 is not closed",
       "a quotation mark at its end, and two for each one inside",
       "a,b\n\"1,2\n"},
      {{path, csv}, "d.csv is not valid UTF-8 at byte 2", "a file in UTF-8", "a\n\xff\n"},
      {{"dataset_kwargs: {data_files: {test: .}}"},
       "is not a file",
       "put the file there, or eval.data_path=FOLDER, which the data paths are relative to"},
      {{"dataset_kwargs: {data_files: {test: d.jsonl}, field: rows}"},
       "is not a JSON object with a list under the key rows",
       "field: data",
       "{\"data\": []}"},
      {{"dataset_kwargs: {data_files: {test: d.jsonl}, field: rows}"},
       "the list rows has 1, which is not a JSON object",
       "a list of objects",
       "{\"rows\": [1]}"},
      {{"dataset_kwargs: {data_files: {test: test.jsonl}, label_files: {test: d.csv}}"},
       "d.csv has 1 labels, but there are 3 documents",
       "a label for each document, each on its own line",
       "1\n"},
  });
}

TEST(TaskErrors, OfALackOfDescriptorsBlameNoFile) {
  const SmallTask folder;
  const Task task = folder.list("small.yaml").tasks.at(0);
  folder.write("d.csv", "question,label\na b,1\n");
  folder.write("csv.yaml", SmallTask::yaml({"dataset_path: csv",
                                            "dataset_kwargs: {data_files: {test: d.csv}}"}));
  const Task table = folder.list("csv.yaml").tasks.at(0);
  const auto expect = [&](const std::string& name, const std::function<void()>& read) {
    std::string said;
    {
      const test::FewDescriptors none(0);
      said = message_of(read);
    }
    EXPECT_THAT(said, AllOf(HasSubstr("cannot open " + folder.path(name).string() + ": this"),
                            HasSubstr("open files\n  try: ulimit -n ")));
  };
  expect("small.yaml", [&] { folder.list("small.yaml"); });
  expect("test.jsonl", [&] { make_items(task, {}); });
  expect("d.csv", [&] { make_items(table, {}); });
}

TEST(TaskErrors, OfIncludes) {
  const SmallTask folder;
  folder.write("other.yaml", "include: small.yaml\n");
  EXPECT_THAT(folder.error({"include: small.yaml"}),
              EndsWith("include: small.yaml leads back to the file itself\n  try: remove this "
                       "include"));
  EXPECT_THAT(folder.error({"include: other.yaml"}),
              HasSubstr("other.yaml: include: small.yaml leads back"));
  EXPECT_THAT(folder.error({"include: none.yaml"}),
              HasSubstr("small.yaml: include: none.yaml does not exist\n  try: a path that begins "
                        "in the folder of small.yaml"));
  for (int i = 0; i < 7; ++i)
    folder.write(fmt::format("b{}", i), fmt::format("include: [b{0}, b{0}, b{0}, b{0}]\n", i + 1));
  folder.write("b7", "num_fewshot: 0\n");
  EXPECT_THAT(folder.error({"include: b0"}),
              HasSubstr("include leads to more than 256 files in all\n  try: fewer files"));
  EXPECT_EQ(folder.error({"include: b5"}), "");
  folder.write("a.yaml", SmallTask::yaml({"num_fewshot: 0"}));
  EXPECT_EQ(folder.error({"include: [a.yaml, a.yaml]"}), "");
}

TEST(TaskErrors, AWordThatIsNoColumnIsWarnedOf) {
  const SmallTask folder;
  const auto warning = [&](const std::vector<std::string>& lines) {
    const test::LogCapture log(false);
    folder.items(lines);
    return log.text();
  };
  EXPECT_THAT(warning({"doc_to_text: qestion"}),
              AllOf(HasSubstr("task small: doc_to_text: qestion is not a column, so it is the same "
                              "text for every document"),
                    HasSubstr("try: doc_to_text: question")));
  EXPECT_THAT(warning({kGenerate, kNone, "doc_to_target: zz"}),
              HasSubstr("try: doc_to_target: one of question, label, words, more"));
  EXPECT_EQ(warning({"doc_to_text: question"}), "");
  EXPECT_EQ(warning({"doc_to_text: ''"}), "");
}

} // namespace
} // namespace pentatron::evaluation
