// Task files: what they may say, and what is refused.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/evaluation/tasks/documents.h"
#include "pentatron/evaluation/tasks/parse_task.h"
#include "pentatron/evaluation/tasks/read_tasks.h"
#include "pentatron/evaluation/tasks/requests.h"
#include "tests/support/files.h"

namespace pentatron::evaluation {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTask = R"(
task: small
dataset_path: json
dataset_kwargs: {data_files: {test: test.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["no", "yes"]
doc_to_target: label
)";

Task parse(const std::string& text) {
  return parse_task(read_task_yaml(text, "small.yaml"), "small.yaml");
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// kTask with a line in place of the one with the same key, or behind the others.
std::string with(const std::string& line) {
  std::string text = kTask;
  const std::string key = "\n" + line.substr(0, line.find(':') + 1);
  if (const size_t at = text.find(key); at != std::string::npos)
    text.erase(at, text.find('\n', at + 1) - at);
  return text + line + "\n";
}

TEST(TaskFile, HasDefaultsOfItsType) {
  const Task task = parse(kTask);
  EXPECT_EQ(task.name, "small");
  EXPECT_EQ(task.output_type, OutputType::kMultipleChoice);
  EXPECT_EQ(task.metrics.size(), 2u);
  EXPECT_TRUE(task.has_metric("acc"));
  EXPECT_TRUE(task.has_metric("acc_norm"));
  EXPECT_EQ(task.fields.target_delimiter, " ");
  EXPECT_EQ(task.fewshot.fields.fewshot_delimiter, "\n\n");
}

TEST(TaskFile, CodeIsRefused) {
  EXPECT_THAT(error_of(with("process_docs: !function utils.process_docs")),
              AllOf(HasSubstr("small.yaml:10: the tag '!function' is not allowed in a task file"),
                    HasSubstr("does not run Python"), HasSubstr("try: ")));
  EXPECT_THAT(error_of(with("process_results: utils.f")), HasSubstr("process_results is not supp"));
  EXPECT_THAT(error_of(with("unsafe_code: true")), HasSubstr("cannot run code"));
}

TEST(TaskFile, WhatIsNotSupportedIsNamed) {
  EXPECT_THAT(
      error_of(with("dataset_path: Rowan/hellaswag")),
      AllOf(HasSubstr("dataset_path: Rowan/hellaswag"), HasSubstr("try: dataset_path: json")));
  EXPECT_THAT(error_of(with("output_type: chat")), HasSubstr("try: one of multiple_choice"));
  EXPECT_THAT(error_of(with("test_split: validation")), HasSubstr("try: test_split: test"));
  EXPECT_THAT(error_of(with("metric_list: [{metric: bleu}]")), HasSubstr("metric: bleu"));
  EXPECT_THAT(error_of(with("metric_list: [{metric: acc, aggregation: f1}]")),
              HasSubstr("does not fit"));
  EXPECT_THAT(error_of(with("repeats: 3")), HasSubstr("try: repeats: 1"));
  EXPECT_THAT(error_of(with("doc_to_txt: a")),
              AllOf(HasSubstr("doc_to_txt"), HasSubstr("try: doc_to_text")));
  EXPECT_THAT(error_of(with("doc_to_text: \"{{question\"")), HasSubstr("doc_to_text"));
  EXPECT_THAT(
      error_of(with("output_type: generate_until") + "generation_kwargs: {max_gen_toks: 0}\n"),
      HasSubstr("max_gen_toks: 0 leaves no room"));
  EXPECT_THAT(error_of(with("fewshot_config: {sampler: balanced}")), HasSubstr("balanced"));
  EXPECT_THAT(error_of(with("filter_list: [{name: a, filter: []}]")), HasSubstr("filter_list"));
}

TEST(TaskFile, PathsOfDataBeginAtTheFileThatHasThem) {
  const TemporaryFolder dir;
  std::filesystem::create_directories(dir.path() / "base");
  std::ofstream(dir.path() / "base/small.yaml") << kTask;
  std::ofstream(dir.path() / "other.yaml")
      << "include: base/small.yaml\ntask: other\nnum_fewshot: 0\n";
  std::ofstream(dir.path() / "both.yaml")
      << "group: both\ntask: [other, {include: base/small.yaml, task: third}]\n"
         "aggregate_metric_list: [{metric: acc}]\n";
  const TaskList list =
      read_tasks({.names = {(dir.path() / "both.yaml").string()}, .data_path = {}});
  ASSERT_EQ(list.tasks.size(), 2u);
  EXPECT_EQ(list.tasks[0].name, "other");
  EXPECT_EQ(list.tasks[0].data.splits.at("test")[0], dir.path() / "base/test.jsonl");
  EXPECT_EQ(list.tasks[1].name, "third");
  ASSERT_EQ(list.groups.size(), 1u);
  EXPECT_THAT(list.groups[0].members, ElementsAre("other", "third"));
  const TaskList moved =
      read_tasks({.names = {(dir.path() / "other.yaml").string()}, .data_path = "data"});
  EXPECT_EQ(moved.tasks[0].data.splits.at("test")[0], "data/test.jsonl");
}

TEST(TaskFile, FilesMayBeNamedByPatternsAndHoldTheirListInAField) {
  const TemporaryFolder dir;
  std::filesystem::create_directories(dir.path() / "data/b");
  std::ofstream(dir.path() / "data/q2.jsonl") << "{\"n\": 2}\n";
  std::ofstream(dir.path() / "data/q1.jsonl") << "{\"n\": 1}\n";
  std::ofstream(dir.path() / "data/.q0.jsonl") << "{\"n\": 0}\n";
  std::ofstream(dir.path() / "data/b/q.json") << R"({"rows": [{"n": 3}, {"m": 4}], "k": 1})";
  const auto documents = [&](const std::string& kwargs) {
    std::ofstream(dir.path() / "small.yaml")
        << with("dataset_kwargs: {data_dir: data, " + kwargs + "}");
    const TaskList list =
        read_tasks({.names = {(dir.path() / "small.yaml").string()}, .data_path = {}});
    return Document(read_documents(list.tasks[0], "test")).dump();
  };
  EXPECT_EQ(documents("data_files: {test: 'q*.jsonl'}"), R"([{"n":1},{"n":2}])");
  EXPECT_EQ(documents("data_files: {test: '*/q.json'}, field: rows"),
            R"([{"n":3,"m":null},{"m":4,"n":null}])");
  EXPECT_THAT(message_of([&] { documents("data_files: {test: 'z*.jsonl'}"); }),
              AllOf(HasSubstr("no file matches"), HasSubstr("z*.jsonl of task small")));
  EXPECT_THAT(message_of([&] { documents("data_files: {test: '**/q.json'}"); }),
              HasSubstr("** is not supported"));
  EXPECT_THAT(message_of([&] { documents("data_files: {test: b/q.json}, field: k"); }),
              HasSubstr("a list under the key k"));
}

TEST(TaskFile, SamplingIsAcceptedWhereItHasNoEffect) {
  std::string text = with("output_type: generate_until");
  text += "generation_kwargs: {do_sample: false, temperature: 0.0, top_p: 0.9, top_k: 5}\n";
  EXPECT_EQ(error_of(text), "");
  const auto filter = [&](const std::string& step) {
    return error_of(text + "filter_list: [{name: a, filter: [" + step + "]}]\n");
  };
  EXPECT_EQ(filter("{function: take_first_k, k: 1}, {function: majority_vote}"), "");
  EXPECT_EQ(filter("{function: map, mapping_dict: {A: 1}, default_value: zz}"), "");
  EXPECT_THAT(filter("{function: take_first_k, k: 2}"), HasSubstr("k: 2"));
  EXPECT_THAT(filter("{function: map}"), HasSubstr("mapping_dict: null is not a mapping"));
}

TEST(TaskFile, TwoOfOneNameAreRefused) {
  const TemporaryFolder dir;
  for (const char* name : {"a.yaml", "b.yaml"}) std::ofstream(dir.path() / name) << kTask;
  const std::string a = (dir.path() / "a.yaml").string(), b = (dir.path() / "b.yaml").string();
  EXPECT_EQ(read_tasks({.names = {a, a}, .data_path = {}}).tasks.size(), 1u);
  try {
    read_tasks({.names = {a, b}, .data_path = {}});
    ADD_FAILURE() << "the second is lost";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(a), HasSubstr(b), HasSubstr("both define the task")));
  }
}

TEST(TaskFile, EveryTaskThatComesWithTheProgramIsRead) {
  ASSERT_FALSE(task_folder().empty());
  for (const auto& entry : std::filesystem::directory_iterator(task_folder())) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string name = entry.path().stem().string();
    if (name.starts_with('_')) continue; // included by others
    EXPECT_FALSE(read_tasks({.names = {name}, .data_path = {}}).tasks.empty()) << name;
  }
  EXPECT_EQ(read_tasks({.names = {"mmlu"}, .data_path = {}}).tasks.size(), 57u);
}

/// As in lm-eval, an example without an answer has no delimiters.
TEST(Examples, WithoutAnAnswerEndWithTheirQuestion) {
  const TemporaryFolder dir;
  std::ofstream(dir.path() / "test.jsonl") << R"({"question": "Q?", "label": 1})" << '\n';
  const auto context = [&](const std::string& answer) {
    std::ofstream(dir.path() / "small.yaml")
        << with("num_fewshot: 1") << "fewshot_config: {sampler: first_n, doc_to_target: '" << answer
        << "', doc_to_choice: null, samples: [{question: 'E?', label: 0, blank: '', answer: A}]}\n";
    const TaskList list =
        read_tasks({.names = {(dir.path() / "small.yaml").string()}, .data_path = {}});
    return make_items(list.tasks.at(0), {}).at(0).requests.at(0).context;
  };
  EXPECT_EQ(context("{{ blank }}"), "E?Q?");
  EXPECT_EQ(context("{{ answer }}"), "E? A\n\nQ?");
}

TEST(Field, GivesWhatAColumnOrATemplateSays) {
  const Document doc = {{"label", 1}, {"text", " a b "}, {"list", {"x", "it's"}}};
  EXPECT_EQ(Field("f", "label").text(doc, false), Document(1));
  EXPECT_EQ(Field("f", "{{label + 1}}").text(doc, true), Document(2));
  EXPECT_EQ(Field("f", "{{label + 1}}").text(doc, false), Document("2"));
  EXPECT_EQ(Field("f", "{{text|trim}}\n").text(doc, true), Document("a b\n"));
  EXPECT_EQ(Field("f", "{{list}}").target(doc, false), Document({"x", "it's"}));
  EXPECT_THAT(Field("f", "{{[text, 'é']}}").choices(doc), ElementsAre(" a b ", "é"));
  EXPECT_THAT(Field("f", "list").choices(doc), ElementsAre("x", "it's"));
  EXPECT_THROW(Field("f", "{{missing}}").text(doc, false), DataError);
  EXPECT_THROW(Field("f", "{{text}}").choices(doc), DataError);
}

/// As Jinja's StrictUndefined, with which lm-eval reads templates.
TEST(Field, AMisspeltColumnIsAnErrorWhereverItStands) {
  const Document document = {{"q", "Q"}, {"list", {1}}};
  const auto text = [&](const char* source) { return Field("f", source).text(document, false); };
  const auto error = [&](const char* source) -> std::string {
    try {
      text(source);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  for (const char* source :
       {"{{ colunm }}", "{% if colunm %}x{% endif %}", "{{ colunm or 2 }}", "{{ 'a' if colunm }}",
        "{% for x in colunm %}x{% endfor %}", "{{ not colunm }}", "{{ [q, colunm] }}",
        "{{ colunm and 2 }}", "{% for x in list if colunm %}x{% endfor %}"})
    EXPECT_THAT(error(source), HasSubstr("'colunm', which is undefined")) << source;
  EXPECT_EQ(text("{{ colunm is defined and colunm }}{{ colunm | default('x') }}{{ q or 2 }}"),
            "FalsexQ");
}

/// The texts are those of apply_template of lm-eval 0.4.13 with Jinja 3.1.6.
TEST(Field, TemplatesWriteWhatJinjaWrites) {
  const Document cases = Document::parse(
      std::ifstream(std::string(PENTATRON_TEST_DATA) + "/evaluation/templates.json"));
  ASSERT_GE(cases["texts"].size(), 25u);
  for (const Document& one : cases["texts"])
    EXPECT_EQ(Field("f", one[0]).text(cases["variables"], false), one[1]) << one[0];
}

TEST(Field, ListsAreThoseOfPython) {
  EXPECT_EQ(parse_python_list(R"(['a', "it's", 'x\n\u00e9', -3, 0.5, None, True])")->dump(),
            R"(["a","it's","x\né",-3,0.5,null,true])");
  for (const char* text : {"", "[", "['a'", "['a' 'b']", "[f(x)]", "['\\ud800']", "[[1]]", "[1] "})
    EXPECT_FALSE(parse_python_list(text)) << text;
}

} // namespace
} // namespace pentatron::evaluation
