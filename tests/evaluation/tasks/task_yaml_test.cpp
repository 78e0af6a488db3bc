// The YAML of task files: values are those of PyYAML, with which lm-eval reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/evaluation/tasks/read_tasks.h"
#include "tests/support/files.h"
#include "tests/support/log_capture.h"

namespace pentatron::evaluation {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string yaml_json(const std::string& text) {
  return read_task_yaml(text, "a.yaml").dump();
}
std::string yaml_error(const std::string& text) {
  return message_of([&] { read_task_yaml(text, "a.yaml"); });
}

TEST(TaskYaml, WordsWithoutQuotesAreValues) {
  EXPECT_EQ(yaml_json("a: null\nb: yes\nc: 3\nd: 0.5\ne: 'yes'\nf: |\n  3\ng: 1e3\n"),
            R"({"a":null,"b":true,"c":3,"d":0.5,"e":"yes","f":"3\n","g":"1e3"})");
  EXPECT_EQ(
      yaml_json("a: 010\nb: 0x1F\nc: 1_000\nd: 1.5e3\ne: 1.0e+3\nf: .5\nh: 0o17\ni: 09\nj: 1.\n"
                "l: +3\nn: -.5\nq: -0b11\nr: -1.5\ns: 0\nt: .\nu: -0x1f\nv: '010'\n"),
      R"({"a":8,"b":31,"c":1000,"d":"1.5e3","e":1000.0,"f":0.5,"h":"0o17","i":"09","j":1.0,)"
      R"("l":3,"n":"-.5","q":-3,"r":-1.5,"s":0,"t":".","u":-31,"v":"010"})");
}

TEST(TaskYaml, AliasesAreTheValuesOfTheirAnchors) {
  EXPECT_EQ(yaml_json("a: &x [1, {b: two}]\nb: *x\nc: [*x, &y s, *y]\nd: &n\ne: *n\n"),
            R"({"a":[1,{"b":"two"}],"b":[1,{"b":"two"}],"c":[[1,{"b":"two"}],"s","s"],)"
            R"("d":null,"e":null})");
  EXPECT_EQ(yaml_json("a: &x 1\nb: *x\nc: &x 2\nd: *x\n"), R"({"a":1,"b":1,"c":2,"d":2})");
}

/// The texts and their order are those of PyYAML 6.0.3.
TEST(TaskYaml, MergeKeysAddWhatASectionLacks) {
  EXPECT_EQ(
      yaml_json("x: &x {a: 1, b: 2}\ny: &y {b: 5, c: 6}\nz: {b: 7, <<: *x}\n"
                "w: {<<: [*x, *y], d: 1}\nv: {<<: *x, <<: *y}\nu: {<<: {a: 3}}\nt: {<<: []}\n"),
      R"({"x":{"a":1,"b":2},"y":{"b":5,"c":6},"z":{"a":1,"b":7},)"
      R"("w":{"b":2,"c":6,"a":1,"d":1},"v":{"a":1,"b":5,"c":6},"u":{"a":3},"t":{}})");
  EXPECT_EQ(yaml_json("'<<': 3\n"), R"({"<<":3})");
  for (const char* text : {"<<: 3\n", "<<: [1]\n", "<<:\n"})
    EXPECT_THAT(yaml_error(text),
                AllOf(HasSubstr("the merge key << takes a section"), HasSubstr("try: <<: *name")))
        << text;
}

TEST(TaskYaml, ExpansionIsBounded) {
  std::string laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n";
  for (int i = 1; i < 10; ++i) {
    laughs += fmt::format("a{}: &a{} [", i, i);
    for (int j = 0; j < 9; ++j) laughs += fmt::format("{}*a{}", j == 0 ? "" : ", ", i - 1);
    laughs += "]\n";
  }
  EXPECT_THAT(yaml_error(laughs), AllOf(HasSubstr("a.yaml:6: the aliases (*name) expand to more "
                                                  "than 16 MiB"),
                                        HasSubstr("try: fewer aliases")));
  std::string deep = "a0: &a0 [x]\n";
  for (int i = 1; i < 20; ++i) deep += fmt::format("a{}: &a{} [*a{}]\n", i, i, i - 1);
  EXPECT_THAT(yaml_error(deep), HasSubstr("nested more than 16 levels deep"));
  for (const char* text : {"a: &x [*x]\n", "a: &x {b: *x}\n", "a: &x {<<: *x}\n"})
    EXPECT_THAT(yaml_error(text),
                HasSubstr("an alias (*name) stands in the section that it names"));
  EXPECT_THAT(yaml_error("a: *x\n"), HasSubstr("YAML syntax"));
}

TEST(TaskYaml, OfARepeatedKeyTheLastValueCounts) {
  const test::LogCapture log(false);
  EXPECT_EQ(yaml_json("a: 1\nb: 2\na: 3\n"), R"({"a":3,"b":2})");
  EXPECT_THAT(log.text(), AllOf(HasSubstr("a.yaml:3: the key a appears twice, first on line 1"),
                                HasSubstr("try: remove one of them")));
}

TEST(TaskYaml, TagsAreRefused) {
  EXPECT_THAT(yaml_error("a: &x !function utils.f\nb: *x\n"),
              HasSubstr("a.yaml:1: the tag '!function' is not allowed in a task file"));
}

} // namespace
} // namespace pentatron::evaluation
