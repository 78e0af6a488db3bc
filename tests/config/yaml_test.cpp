// What a YAML text may be, and what every kind of field makes of it.
#include <filesystem>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/config/node.h"
#include "pentatron/config/violations.h"
#include "tests/config/example.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/files.h"

namespace pentatron::config_example {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Config load(std::string_view text) {
  Config c;
  config::Violations v;
  config::apply_yaml(c, text, "run.yaml", v);
  config::validate(c, v);
  v.throw_if_any();
  return c;
}

std::string problems_of_yaml(std::string_view text) {
  Config c;
  config::Violations v;
  config::apply_yaml(c, text, "run.yaml", v);
  config::validate(c, v);
  return v.text();
}

TEST(Yaml, AssignsEveryKindOfField) {
  const Config c = load(R"(
name: a name with spaces
seed: 42
small: -128
single: 2.5e-1
note: "quoted: \"yes\" \u00e9"
model:
  num_layers: 24   # a comment
  kv_channels: 128
  norm: layernorm
  dropout: 0
  rope: {theta: 1e6, interleaved: true}
dataset:
  path: [a, "b c"]
  weights:
    - 0.25
    - 3
  splits: [1, 2]
  norms: [rms, layernorm]
  flags: [true, false]
)");
  EXPECT_EQ(c.name, "a name with spaces");
  EXPECT_EQ(c.seed, 42);
  EXPECT_EQ(c.small, -128);
  EXPECT_EQ(c.single, 0.25F);
  EXPECT_EQ(c.note, "quoted: \"yes\" \u00e9");
  EXPECT_EQ(c.model.num_layers, 24);
  EXPECT_EQ(c.model.kv_channels, 128);
  EXPECT_EQ(c.model.norm, NormKind::kLayerNorm);
  EXPECT_EQ(c.model.dropout, 0.0);
  EXPECT_EQ(c.model.rope.theta, 1e6);
  EXPECT_TRUE(c.model.rope.interleaved);
  EXPECT_THAT(c.dataset.path, ElementsAre("a", "b c"));
  EXPECT_THAT(c.dataset.weights, ElementsAre(0.25, 3.0));
  EXPECT_EQ(c.dataset.splits, (std::vector<int64_t>{1, 2}));
  EXPECT_THAT(c.dataset.norms, ElementsAre(NormKind::kRms, NormKind::kLayerNorm));
  EXPECT_THAT(c.dataset.flags, ElementsAre(true, false));
}

TEST(Yaml, KeepsWhatIsNotMentioned) {
  const Config c = load("model: {num_layers: 2}");
  EXPECT_EQ(c.model.num_attention_heads, 32);
  EXPECT_EQ(c.model.rope.theta, 500000.0);
  EXPECT_EQ(load("").seed, 1234);
  EXPECT_EQ(load("# nothing\n").seed, 1234);
  EXPECT_EQ(load("model:\n").seed, 1234);
}

TEST(Yaml, NullEmptiesAnOptional) {
  for (const char* text : {"note: null", "note: ~", "note:"}) {
    Config c;
    c.note = "x";
    config::Violations v;
    config::apply_yaml(c, text, "run.yaml", v);
    EXPECT_FALSE(c.note.has_value()) << text;
    EXPECT_TRUE(v.empty()) << text;
  }
}

struct IntegerCase {
  const char* text;
  int64_t value;
};
class Integers : public ::testing::TestWithParam<IntegerCase> {};
TEST_P(Integers, AreRead) {
  EXPECT_EQ(load(fmt::format("seed: {}", GetParam().text)).seed, GetParam().value);
}
INSTANTIATE_TEST_SUITE_P(
    Forms, Integers,
    ::testing::Values(IntegerCase{"0", 0}, IntegerCase{"-7", -7}, IntegerCase{"+7", 7},
                      IntegerCase{"1e3", 1000}, IntegerCase{"2.5e3", 2500},
                      IntegerCase{"1_000_000", 1000000}, IntegerCase{"3.0", 3},
                      IntegerCase{"-0", 0}, IntegerCase{"1E15", 1000000000000000},
                      IntegerCase{"9223372036854775807", std::numeric_limits<int64_t>::max()},
                      IntegerCase{"-9223372036854775808", std::numeric_limits<int64_t>::min()}));

struct BadCase {
  const char* text;
  const char* cause;
  const char* suggestion;
};
class Refused : public ::testing::TestWithParam<BadCase> {};
TEST_P(Refused, WithCauseAndWhatWorks) {
  const std::string text = problems_of_yaml(GetParam().text);
  EXPECT_THAT(text, HasSubstr(GetParam().cause));
  EXPECT_THAT(text, HasSubstr("run.yaml:"));
  if (*GetParam().suggestion != '\0') {
    EXPECT_THAT(text, HasSubstr(fmt::format("try: {}", GetParam().suggestion)));
  }
}
INSTANTIATE_TEST_SUITE_P(
    Values, Refused,
    ::testing::Values(
        BadCase{"seed: 010", "seed=010 begins with 0", "seed=10"},
        BadCase{"seed: -007", "begins with 0", "seed=-7"},
        BadCase{"seed: 0x10", "is not a decimal number", "seed=16"},
        BadCase{"seed: 1.5", "seed=1.5 is not an integer", "seed=2"},
        BadCase{"seed: 1e17", "seed=1e17 is too large for this form", "seed=100000000000000000"},
        BadCase{"seed: 1e30", "seed=1e30 is out of range", "seed=9223372036854775807"},
        BadCase{"seed: 1__0", "is not an integer", ""},
        BadCase{"seed: _1", "is not an integer", ""},
        BadCase{"seed: 12x", "is not an integer", "seed="},
        BadCase{"seed: 9223372036854775808", "is out of range", "seed=9223372036854775807"},
        BadCase{"seed: \"12\"", "is a string in quotes", "seed=12"},
        BadCase{"seed: null", "is null, but must be an integer", ""},
        BadCase{"seed: [1]", "is not an integer", ""},
        BadCase{"small: 128", "is out of range: it must be >= -128, <= 127", "small=127"},
        BadCase{"model: {num_layers: 1e20}",
                "model.num_layers=1e20 is out of range: it must be >= "
                "1, <= 1000",
                "model.num_layers=12"},
        BadCase{"model: {num_layers: 1e17}", "num_layers=1e17 is out of range",
                "model.num_layers=12"},
        BadCase{"model: {vocab_size: 1e20}",
                "it must be >= -9223372036854775808, multiple of 64, "
                "<= 9223372036854775807",
                ""},
        BadCase{"single: .nan", "is not a number", "single="},
        BadCase{"single: 1e999", "is not a number", ""},
        BadCase{"name: null", "is null, but must be a string", "name=\"\""},
        BadCase{"name: [0.3, a, 0.7, b]", "is not a string", "name=\"0.3 a 0.7 b\""},
        BadCase{"model: {rope: {interleaved: yes}}", "is not true or false",
                "model.rope.interleaved=true"},
        BadCase{"model: {norm: rmsnrom}", "is not one of layernorm, rmsnorm", "model.norm=rmsnorm"},
        BadCase{"model: {norm: zzzz}", "is not one of layernorm, rmsnorm", "model.norm="},
        BadCase{"dataset: {path: a}", "is not a list", "dataset.path=[a]"},
        BadCase{"dataset: {weights: [1, x]}", "element 1 ('x') that is not a number", ""},
        BadCase{"model: 3", "model is a section", "model.num_layers=..."},
        BadCase{"[1, 2]", "the configuration is a section", ""}));
INSTANTIATE_TEST_SUITE_P(
    Keys, Refused,
    ::testing::Values(
        BadCase{"model: {num_layer: 2}", "model.num_layer is not a key", "model.num_layers"},
        BadCase{"num_layers: 2", "num_layers is not a key", "model.num_layers=2"},
        BadCase{"modle: {}", "modle is not a key", "model"},
        BadCase{"model.num_layers: 2", "model.num_layers is a key of a section, which YAML nests",
                "model: {num_layers: 2}"},
        BadCase{"model.rope.theta: 5\nmodel.num_layers: 2\nmodel.rope.interleaved: null\n",
                "model.rope.theta is a key", "model: {rope: {theta: 5, interleaved: null}}"},
        BadCase{"theta: 2", "theta is not a key", "model.rope.theta"},
        BadCase{"model: {zzzzzzzzzzzz: 2}", "is not a key", "one of num_layers, "},
        BadCase{"seed: 1\nseed: 2", "'seed' appears twice in its section, first on line 1",
                "remove one"},
        BadCase{"model:\n  norm: rms\n  norm: rms", "run.yaml:3: the key", ""},
        BadCase{"? [a]\n: 1", "a key must be a name", ""}));
INSTANTIATE_TEST_SUITE_P(Syntax, Refused,
                         ::testing::Values(BadCase{"seed: &x 1", "an anchor", ""},
                                           BadCase{"seed: &x 1\nsmall: *x", "an alias", ""},
                                           BadCase{"model: &x {num_layers: 3}", "an anchor", ""},
                                           BadCase{"seed: !!int 1", "the tag", ""},
                                           BadCase{"name: !!python/object:os.system x", "the tag",
                                                   ""},
                                           BadCase{"seed: [1", "YAML syntax", ""},
                                           BadCase{"seed: 1\n\tx: 2", "YAML syntax", ""},
                                           BadCase{"a: [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]",
                                                   "nested more than 16", ""}));

/// As PyYAML reads them, and as its safe_dump writes text that ends in line breaks.
TEST(Yaml, FoldsQuotedTextOfSeveralLines) {
  const std::pair<std::string, std::string> cases[] = {
      {"'\n\n  '", "\n"},
      {"'\n\n\n  '", "\n\n"},
      {"'x\n\n\n  '", "x\n\n"},
      {"'x\n\n\n\n  '", "x\n\n\n"},
      {"'x  \n  y'", "x y"},
      {"'x\n\n  y z\n  '", "x\ny z "},
      {"'it''s\n\n '", "it's\n"},
      {"'a\r\n\r\n\r\n '", "a\n\n"},
      {"\"a\\\n  b\"", "ab"},
      {"\"a \\\n\n  b\"", "a \nb"},
      {"\"a\\n\\\n   \\  b\\x41\\u00e9\\U0001F600\\\"\n\n\n \"", "a\n  bA\u00e9\U0001F600\"\n\n"},
      {"\"tab\\t \n x\"", "tab\t x"},
      {"\" \n a\"", " a"},
      {"'no fold # here'", "no fold # here"}};
  for (const char* before : {"", "\xEF\xBB\xBF", "# \u00e9\r\n"})
    for (const auto& [text, value] : cases) {
      config::Violations violations;
      const std::optional<config::Node> root = config::parse_yaml(
          std::string(before) + "first: 'a\n\n\n '\nkey: " + text + "\nlast: [" + text + "]\n",
          "t.yaml", true, violations, {});
      ASSERT_TRUE(root && violations.empty()) << text;
      ASSERT_EQ(root->members.size(), 3u);
      EXPECT_EQ(root->members[0].value.text, "a\n\n");
      EXPECT_EQ(root->members[1].value.text, value) << text;
      EXPECT_EQ(root->members[2].value.items.at(0).text, value) << text;
    }
}

TEST(Yaml, RefusesTwoDocumentsControlCharactersAndBadUtf8) {
  EXPECT_THAT(problems_of_yaml("seed: 1\n---\nseed: 2\n"),
              HasSubstr("more than one YAML document"));
  EXPECT_THAT(problems_of_yaml("seed: 1\n\x04\nseed: 2\n"), HasSubstr("control character 0x04"));
  EXPECT_THAT(problems_of_yaml("name: \xC0\xAF"), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(problems_of_yaml(std::string((1 << 20) + 1, ' ')), HasSubstr("more than the limit"));
  EXPECT_THAT(problems_of_yaml(std::string(100000, '[')), HasSubstr("nested more than 16"));
}

TEST(Yaml, ReportsEverythingInOnePass) {
  const std::string text = problems_of_yaml(R"(seed: x
model:
  num_layers: 0
  num_layer: 3
  dropout: 1
  vocab_size: 100
dataset:
  path: []
)");
  EXPECT_EQ(text, R"(6 problems in the configuration
  run.yaml:1: seed=x is not an integer
    try: seed=1234
  run.yaml:4: model.num_layer is not a key
    try: model.num_layers
  run.yaml:3: model.num_layers=0 is not allowed: it must be >= 1, <= 1000
    try: model.num_layers=1
  run.yaml:6: model.vocab_size=100 is not allowed: it must be multiple of 64
    try: model.vocab_size=128
  run.yaml:5: model.dropout=1 is not allowed: it must be >= 0, < 1
    try: model.dropout=0.1
  run.yaml:8: dataset.path=[] is not allowed: it must not be empty
    try: dataset.path=[corpus])");
}

TEST(Yaml, ReadsAFileAndNamesIt) {
  const std::string file = ::testing::TempDir() + "pentatron_config_yaml_test.yaml";
  std::ofstream(file) << "seed: 7\nmodel:\n  bad: 1\n";
  Config c;
  config::Violations v;
  config::apply_file(c, file, v);
  EXPECT_EQ(c.seed, 7);
  EXPECT_THAT(v.text(), HasSubstr(file + ":3: model.bad is not a key"));
  config::Violations missing;
  config::apply_file(c, file + ".none", missing);
  EXPECT_THAT(missing.text(), HasSubstr("does not exist"));
  config::Violations folder;
  config::apply_file(c, ::testing::TempDir(), folder);
  EXPECT_THAT(folder.text(), HasSubstr("is not a file"));
}

class Include : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << text;
  }
  std::string problems_of_yaml(const std::string& name) {
    config::Violations v;
    config::apply_file(c, folder / name, v);
    return v.text();
  }
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path();
  Config c;
};

TEST_F(Include, ComesBeforeTheFileThatNamesIt) {
  write("base.yaml", "seed: 1\nname: base\nmodel: {num_layers: 3, vocab_size: 64}\n");
  write("parts/more.yaml", "include: ../base.yaml\nname: more\nmodel: {num_layers: 5}\n");
  write("run.yaml", "seed: 7\ninclude: [parts/more.yaml]\n");
  config::Violations v;
  config::apply_file(c, folder / "run.yaml", v);
  EXPECT_TRUE(v.empty()) << v.text();
  EXPECT_EQ(c.seed, 7) << "the place of the include does not matter";
  EXPECT_EQ(c.name, "more");
  EXPECT_EQ(c.model.num_layers, 5);
  EXPECT_EQ(c.model.vocab_size, 64);
  EXPECT_EQ(v.where("seed"), (folder / "run.yaml").string() + ":1");
  EXPECT_EQ(v.where("model.vocab_size"), (folder / "base.yaml").string() + ":3");
  EXPECT_EQ(config::to_yaml(c).find("include"), std::string::npos);
}

TEST_F(Include, OrFileThatALackOfDescriptorsKeepsFromBeingReadIsRight) {
  write("run.yaml", "seed: 7\n");
  std::string said;
  {
    const test::FewDescriptors none(0);
    said = message_of([&] { problems_of_yaml("run.yaml"); });
  }
  EXPECT_THAT(said, HasSubstr("cannot open " + (folder / "run.yaml").string() + ": this process"));
  EXPECT_THAT(said, HasSubstr("\n  try: ulimit -n "));
}

TEST_F(Include, OfAListTheLastFileWinsAndOneFileMayComeTwice) {
  write("a.yaml", "include: c.yaml\nseed: 1\nname: a\n");
  write("b.yaml", "include: c.yaml\nname: b\n");
  write("c.yaml", "small: 5\nname: c\n");
  write("run.yaml", "include: [a.yaml, b.yaml]\n");
  EXPECT_EQ(problems_of_yaml("run.yaml"), "");
  EXPECT_EQ(c.seed, 1);
  EXPECT_EQ(c.name, "b");
  EXPECT_EQ(c.small, 5);
}

TEST_F(Include, MistakesNameTheLine) {
  const auto at = [&](const char* name) { return (folder / name).string(); };
  write("none.yaml", "seed: 1\ninclude: [nowhere.yaml]\n");
  EXPECT_THAT(problems_of_yaml("none.yaml"), HasSubstr(at("none.yaml") + ":2: the included file " +
                                                       at("nowhere.yaml") + " does not exist"));
  write("self.yaml", "include: self.yaml\n");
  EXPECT_THAT(problems_of_yaml("self.yaml"), HasSubstr(at("self.yaml") + " includes itself"));
  write("x.yaml", "include: y.yaml\n");
  write("y.yaml", "include: ./x.yaml\n");
  EXPECT_THAT(problems_of_yaml("x.yaml"),
              HasSubstr(at("y.yaml") + ":1: " + at("x.yaml") + " includes itself: " + at("x.yaml") +
                        " -> " + at("y.yaml") + " -> " + at("x.yaml")));
  for (const char* value : {"{a: b}", "null", "[[a]]", "\"\""}) {
    write("bad.yaml", std::string("include: ") + value + "\n");
    EXPECT_THAT(problems_of_yaml("bad.yaml"),
                HasSubstr("bad.yaml:1: include is not a list of files"));
  }
  write("twice.yaml", "include: a.yaml\ninclude: b.yaml\n");
  EXPECT_THAT(problems_of_yaml("twice.yaml"), HasSubstr("appears twice"));
  write("inner.yaml", "model: {include: a.yaml}\n");
  EXPECT_THAT(problems_of_yaml("inner.yaml"), HasSubstr("model.include is not a key"));
  write("wrong.yaml", "seed: many\n");
  write("outer.yaml", "include: wrong.yaml\n");
  EXPECT_THAT(problems_of_yaml("outer.yaml"), HasSubstr(at("wrong.yaml") + ":1: seed=many"));
}

TEST_F(Include, IsLimitedInDepthAndNumber) {
  for (int i = 0; i < 20; ++i)
    write(std::to_string(i) + ".yaml", "include: " + std::to_string(i + 1) + ".yaml\n");
  EXPECT_THAT(problems_of_yaml("0.yaml"), HasSubstr("more than 8 levels deep"));
  write("leaf.yaml", "seed: 1\n");
  std::string many = "include: [leaf.yaml";
  for (int i = 0; i < 70; ++i) many += ", leaf.yaml";
  write("many.yaml", many + "]\n");
  EXPECT_THAT(problems_of_yaml("many.yaml"), HasSubstr("more than 64 files"));
}

TEST_F(Include, IsOnlyForFiles) {
  config::Violations v;
  config::apply_yaml(c, "include: a.yaml\n", "text", v);
  EXPECT_THAT(v.text(), HasSubstr("include is not a key"));
}

} // namespace
} // namespace pentatron::config_example
