// Overrides, rules between fields, saving, comparing and explaining.
#include "pentatron/config/config.h"

#include <bit>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pentatron/base/philox.h"
#include "tests/config/example.h"

namespace pentatron::config_example {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Config with(std::initializer_list<const char*> overrides) {
  Config c;
  config::Violations v;
  for (const char* text : overrides) config::apply_override(c, text, v);
  v.throw_if_any();
  return c;
}

std::string problems(const char* assignment) {
  Config c;
  config::Violations v;
  config::apply_override(c, assignment, v);
  config::validate(c, v);
  return v.text();
}

TEST(Override, AssignsByDottedPath) {
  const Config c =
      with({"model.num_layers=24", "dataset.path=[a, 'b c', \"d\"]", "model.rope.theta=1e4",
            "model.norm=rms", "note=null", "name=x = y: z # no comment", "dataset.splits=[1,2]",
            "model.rope={interleaved: true}", "model.kv_channels=64", "dataset.flags=[]"});
  EXPECT_EQ(c.model.num_layers, 24);
  EXPECT_THAT(c.dataset.path, ElementsAre("a", "b c", "d"));
  EXPECT_EQ(c.model.rope.theta, 1e4);
  EXPECT_EQ(c.name, "x = y: z # no comment");
  EXPECT_EQ(c.dataset.splits, (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(c.model.rope.interleaved);
  EXPECT_EQ(c.model.kv_channels, 64);
  EXPECT_FALSE(c.note.has_value());
}

TEST(Override, NamesItselfInProblems) {
  EXPECT_EQ(problems("model.num_layer=2"), "model.num_layer is not a key\n  try: model.num_layers");
  EXPECT_EQ(
      problems("model.num_layers=0"),
      "model.num_layers=0 is not allowed: it must be >= 1, <= 1000\n  try: model.num_layers=1");
  EXPECT_THAT(problems("name=null"), HasSubstr("is null, but must be a string\n  try: name=\"\""));
  EXPECT_EQ(problems("name=\"null\""), "");
  EXPECT_THAT(problems("seed"), HasSubstr("has no value\n  try: seed=VALUE"));
  EXPECT_THAT(problems(""), HasSubstr("has no value"));
  EXPECT_THAT(problems("=3"), HasSubstr("override '=3': no key"));
  EXPECT_THAT(problems("model..num_layers=3"), HasSubstr("try: model.num_layers"));
  EXPECT_THAT(problems("model=3"), HasSubstr("model is a section"));
  EXPECT_THAT(problems("seed.x=3"), HasSubstr("is not a key"));
  EXPECT_THAT(problems("dataset.path=[a"), HasSubstr("YAML syntax"));
  EXPECT_THAT(problems("name=\xff"), HasSubstr("not valid UTF-8"));
}

TEST(Override, TheLastAssignmentCountsAlsoForWhere) {
  Config c;
  config::Violations v;
  config::apply_yaml(c, "model: {num_layers: 0}", "run.yaml", v);
  config::apply_override(c, "model.num_layers=3", v);
  config::validate(c, v);
  EXPECT_TRUE(v.empty()) << v.text();
  config::apply_override(c, "model.num_layers=-1", v);
  config::validate(c, v);
  EXPECT_THAT(v.text(), HasSubstr("model.num_layers=-1 is not allowed"));
}

TEST(Validate, ChecksRulesBetweenFields) {
  EXPECT_EQ(problems("tensor_model_parallel_size=6"),
            "tensor_model_parallel_size=6 does not divide "
            "model.num_attention_heads=32\n  try: tensor_model_parallel_size=4");
}

TEST(Validate, RulesBetweenFieldsWaitForTheFieldsOwn) {
  EXPECT_EQ(problems("tensor_model_parallel_size=0"),
            "tensor_model_parallel_size=0 is not allowed: "
            "it must be >= 1\n  try: tensor_model_parallel_size=1");
}

TEST(Validate, ANumberIsNamedAsItWasTypedAndTheDefaultProposed) {
  EXPECT_EQ(problems("model.rope.theta=-3"),
            "model.rope.theta=-3 is not allowed: it must be > 0\n  "
            "try: model.rope.theta=500000.0");
}

TEST(Validate, TellsWhetherOneCanReckonWithASection) {
  EXPECT_TRUE(config::fields_hold(with({"tensor_model_parallel_size=6"})));
  EXPECT_FALSE(config::fields_hold(with({"model.rope.theta=0"}).model));
  EXPECT_TRUE(config::fields_hold(with({"model.rope.theta=0"}).dataset));
}

TEST(Violations, AreFoundBySection) {
  config::Violations v;
  v.add("model.rope.theta", "");
  v.add("dataset", "");
  EXPECT_TRUE(v.any_in("model") && v.any_in("model.rope") && v.any_in("dataset"));
  EXPECT_FALSE(v.any_in("mode") || v.any_in("model.rope.t") || v.any_in("models"));
}

TEST(Validate, DefaultsOfAStructCanBeWrongToo) {
  Config c;
  c.model.kv_channels = 0;
  c.dataset.weights = {1.0, -1.0};
  c.model.dropout = std::nan("");
  config::Violations v;
  config::validate(c, v);
  EXPECT_EQ(v.list().size(), 3u) << v.text();
  EXPECT_THAT(
      v.text(),
      HasSubstr(
          "model.kv_channels=0 is not allowed: it must be > 0\n    try: model.kv_channels=null"));
  EXPECT_THROW(v.throw_if_any(), ConfigError);
}

TEST(Yaml, RoundTripsDefaults) {
  const Config c;
  const std::string text = config::to_yaml(c);
  Config back = with({"seed=1", "model.rope.theta=3", "dataset.path=[]"});
  config::Violations v;
  config::apply_yaml(back, text, "x", v);
  EXPECT_TRUE(v.empty()) << v.text();
  EXPECT_THAT(config::diff(c, back), IsEmpty());
  EXPECT_EQ(config::to_yaml(back), text);
}

TEST(Yaml, LooksAsPeopleWriteIt) {
  EXPECT_EQ(config::to_yaml(Config{}), R"(name: run
seed: 1234
small: 3
single: 0.10000000149011612
note: null
tensor_model_parallel_size: 1
model:
  num_layers: 12
  num_attention_heads: 32
  vocab_size: 50304
  kv_channels: null
  norm: rmsnorm
  dropout: 0.1
  rope:
    theta: 500000.0
    interleaved: false
dataset:
  path: [corpus]
  weights: []
  splits: null
  norms: []
  flags: []
)");
}

// Strings and numbers of every shape come back bit for bit, through files and through overrides.
TEST(Yaml, RoundTripsRandomValues) {
  const Stream random(1, "config round trip");
  const std::vector<std::string> pieces = {
      "a",      " ",      ":",    "#",   "\n", "\t",   "\"",   "'",    "\\",
      "-",      "[",      "]",    "{",   "}",  ",",    "&",    "*",    "!",
      "%",      "@",      "`",    "|",   ">",  "?",    "=",    "null", "~",
      "\u00e9", "\u2028", "0",    "1e5", "\r", "\x01", "\x04", "\x7f", "\U0001F600",
      "\u0085", "\ufeff", "true", "...", "---"};
  for (uint64_t trial = 0; trial < 3000; ++trial) {
    Config c;
    const auto text = [&](uint64_t salt) {
      std::string out;
      const uint64_t length = random.below(7, trial, salt);
      for (uint64_t k = 0; k < length; ++k) {
        out += pieces[random.below(pieces.size(), trial, salt + 1 + k)];
      }
      return out;
    };
    c.name = text(100);
    c.note = text(200);
    c.dataset.path = {text(300), text(400)};
    const auto bits = random.bits(trial, 1);
    const auto number = std::bit_cast<double>((uint64_t{bits[0]} << 32) | bits[1]);
    c.model.rope.theta = std::isnan(number) ? std::numeric_limits<double>::infinity() : number;
    c.seed = static_cast<int64_t>((uint64_t{bits[2]} << 32) | bits[3]);
    Config from_file;
    Config from_overrides;
    config::Violations v;
    config::apply_yaml(from_file, config::to_yaml(c), "x", v);
    for (const config::Difference& d : config::diff(Config{}, c)) {
      config::apply_override(from_overrides, d.path + "=" + d.after, v);
    }
    ASSERT_TRUE(v.empty()) << v.text() << "\n" << config::to_yaml(c);
    ASSERT_EQ(from_file.name, c.name);
    ASSERT_EQ(from_file.note, c.note) << config::to_yaml(c);
    ASSERT_EQ(from_file.dataset.path, c.dataset.path) << config::to_yaml(c);
    ASSERT_EQ(std::bit_cast<uint64_t>(from_file.model.rope.theta),
              std::bit_cast<uint64_t>(c.model.rope.theta));
    ASSERT_EQ(from_file.seed, c.seed);
    ASSERT_THAT(config::diff(from_overrides, c), IsEmpty());
  }
}

TEST(Diff, ListsChangedKeysInOrder) {
  const auto differences =
      config::diff(Config{}, with({"model.norm=layernorm", "seed=5", "note=hello world"}));
  EXPECT_EQ(config::to_text(differences), "seed: 1234 -> 5\n"
                                          "note: null -> \"hello world\"\n"
                                          "model.norm: rmsnorm -> layernorm\n");
}

TEST(Get, ReadsByPath) {
  EXPECT_EQ(config::get(Config{}, "model.rope.theta"), "500000.0");
  EXPECT_THROW(config::get(Config{}, "model.rope.thetas"), ConfigError);
  EXPECT_THROW(config::get(Config{}, "model.rope"), ConfigError);
}

enum class Shape { kCircle, kBox };
constexpr auto enum_names(Shape) {
  return std::array{config::name(Shape::kCircle, "circle"), config::name(Shape::kBox, "box")};
}

struct BoxConfig {
  int64_t depth = 1;
  static constexpr auto fields() {
    return std::tuple{config::field("depth", &BoxConfig::depth, "third side").min(1)};
  }
};

struct ShapeConfig {
  Shape type = Shape::kCircle;
  double radius = 1;
  int64_t width = 2;
  BoxConfig box;
  static constexpr auto fields() {
    using C = ShapeConfig;
    return std::tuple{
        config::field("type", &C::type, "kind").selects_variant(),
        config::field("radius", &C::radius, "of a circle").positive().only_for(Shape::kCircle),
        config::field("width", &C::width, "of a box").min(1).only_for(Shape::kBox),
        config::field("box", &C::box, "more of a box").only_for(Shape::kBox)};
  }
};

struct DrawingConfig {
  ShapeConfig shape;
  static constexpr auto fields() {
    return std::tuple{config::field("shape", &DrawingConfig::shape, "what is drawn")};
  }
};

TEST(Variants, AFieldOfAnotherVariantIsRefusedByName) {
  DrawingConfig config;
  config::Violations violations;
  config::apply_override(config, "shape.width=3", violations);
  config::apply_override(config, "shape.box.depth=2", violations);
  config::validate(config, violations);
  ASSERT_EQ(violations.list().size(), 2u);
  EXPECT_EQ(violations.list()[0].cause,
            "shape.width is a key of shape.type=box, not of shape.type=circle");
  EXPECT_EQ(violations.list()[0].suggestion, "shape.type=box");
  EXPECT_EQ(violations.list()[1].path, "shape.box");

  config::Violations none; // whatever the order
  config::apply_override(config, "shape.type=box", none);
  config::validate(config, none);
  EXPECT_TRUE(none.empty()) << none.text();
  config::Violations same; // a default is named too
  config::apply_override(config, "shape.radius=1", same);
  config::validate(config, same);
  ASSERT_EQ(same.list().size(), 1u);
  EXPECT_EQ(same.list()[0].suggestion, "shape.type=circle"); // nobody chose one
  config::apply_override(config, "shape.type=box", same);
  config::validate(config, same);
  EXPECT_EQ(same.list().back().suggestion, "remove shape.radius");
}

TEST(Variants, OnlyFieldsOfTheVariantAreSuggested) {
  const auto suggestion = [](DrawingConfig config, const char* assignment) {
    config::Violations violations;
    config::apply_override(config, assignment, violations);
    return violations.list().at(0).suggestion;
  };
  DrawingConfig circle, box;
  box.shape.type = Shape::kBox;
  EXPECT_EQ(suggestion(circle, "shape.zzzzzz=1"), "one of type, radius");
  EXPECT_EQ(suggestion(box, "shape.zzzzzz=1"), "one of type, width, box");
  EXPECT_EQ(suggestion(circle, "shape.widht=1"), "one of type, radius");
  EXPECT_EQ(suggestion(box, "shape.widht=1"), "shape.width");
  EXPECT_EQ(suggestion(circle, "depth=1"), "one of shape");
  EXPECT_EQ(suggestion(box, "depth=1"), "shape.box.depth");
}

TEST(Variants, OnlyFieldsOfTheVariantAreCheckedAndShown) {
  DrawingConfig config;
  config.shape.width = -1; // of a box
  config::Violations violations;
  config::validate(config, violations);
  EXPECT_TRUE(violations.empty()) << violations.text();
  EXPECT_EQ(config::to_yaml(config), "shape:\n  type: circle\n  radius: 1.0\n");
  DrawingConfig other;
  EXPECT_TRUE(config::diff(config, other).empty());
  other.shape.type = Shape::kBox;
  std::vector<std::string> changed;
  for (const config::Difference& d : config::diff(config, other)) changed.push_back(d.path);
  EXPECT_EQ(changed, (std::vector<std::string>{"shape.type", "shape.width"}));
}

struct WeightsConfig {
  std::vector<double> weights = {1};
  static constexpr auto fields() {
    using C = WeightsConfig;
    return std::tuple{config::field("weights", &C::weights, "of terms").range(0, 2).or_one()};
  }
};

TEST(OrOne, AValueWithoutBracketsIsAListOfOne) {
  const auto weights = [](const std::string& text) {
    WeightsConfig config;
    config::Violations violations;
    config::apply_override(config, "weights=" + text, violations);
    config::validate(config, violations);
    return violations.empty() ? fmt::format("{}", config.weights) : violations.text();
  };
  EXPECT_EQ(weights("0.5"), "[0.5]");
  EXPECT_EQ(weights("[0.5,2]"), "[0.5, 2]");
  EXPECT_THAT(weights("3"), HasSubstr("try: weights="));
  EXPECT_THAT(weights("heavy"), HasSubstr("heavy"));
  const auto schema = nlohmann::json::parse(config::json_schema<WeightsConfig>("example"));
  EXPECT_EQ(schema["properties"]["weights"]["anyOf"][0]["type"], "array");
  EXPECT_EQ(schema["properties"]["weights"]["anyOf"][1]["type"], "number");
}

enum class Fill { kNone, kPlain, kHatched };
constexpr auto enum_names(Fill) {
  return std::array{config::name(Fill::kNone, "none"), config::name(Fill::kPlain, "plain"),
                    config::name(Fill::kHatched, "hatched")};
}

struct PenConfig {
  Fill fill = Fill::kNone;
  std::string color = "black";
  int64_t lines = 4;
  static constexpr auto fields() {
    using C = PenConfig;
    return std::tuple{config::field("fill", &C::fill, "inside of a shape"),
                      config::field("color", &C::color, "of the inside")
                          .only_with("fill", Fill::kPlain, Fill::kHatched),
                      config::field("lines", &C::lines, "of the hatching")
                          .min(1)
                          .only_with("fill", Fill::kHatched)};
  }
};

TEST(OnlyWith, AValueWithoutEffectIsRefusedWithWhatItNeeds) {
  const auto problem = [](const std::vector<std::string>& overrides) {
    PenConfig config;
    config::Violations violations;
    for (const std::string& text : overrides) config::apply_override(config, text, violations);
    config::validate(config, violations);
    return violations.text();
  };
  const auto is = [](const std::string& cause, const std::string& remedy) {
    return fmt::format("{}\n  try: {}", cause, remedy);
  };
  EXPECT_EQ(problem({"color=red"}),
            is("color=red has no effect without fill=plain or fill=hatched", "fill=plain"));
  EXPECT_EQ(problem({"color=red", "fill=none"}),
            is("color=red has no effect without fill=plain or fill=hatched", "remove color"));
  EXPECT_EQ(problem({"fill=plain", "lines=2"}),
            is("lines=2 has no effect without fill=hatched", "remove lines"));
  for (const char* fill : {"fill=none", "fill=plain", "fill=hatched"})
    EXPECT_EQ(problem({fill, "color=black", "lines=4"}), "") << "defaults";
  EXPECT_EQ(problem({"fill=hatched", "lines=2", "color=red"}), "");
  EXPECT_THAT(problem({"fill=hatched", "lines=0"}), HasSubstr("lines=0 is not allowed"));
}

TEST(OnlyWith, AValueWithoutEffectIsNotShown) {
  PenConfig config;
  config.color = "red"; // of code that fills the struct
  EXPECT_EQ(config::to_yaml(config), "fill: none\n");
  EXPECT_TRUE(config::diff(config, PenConfig{}).empty());
  config::Violations violations;
  config::validate(config, violations);
  EXPECT_TRUE(violations.empty());
  config.fill = Fill::kPlain;
  EXPECT_EQ(config::to_yaml(config), "fill: plain\ncolor: red\n");
}

TEST(Hash, DependsOnValuesOnly) {
  EXPECT_EQ(config::hash(Config{}), config::hash(Config{}));
  EXPECT_EQ(config::hash(Config{}).size(), 16u);
  EXPECT_NE(config::hash(Config{}), config::hash(with({"dataset.flags=[true]"})));
  struct Ab {
    int64_t a = 1, b = 2;
    static constexpr auto fields() {
      return std::tuple{config::field("a", &Ab::a, ""), config::field("b", &Ab::b, "")};
    }
  };
  struct Ba {
    int64_t a = 1, b = 2;
    static constexpr auto fields() {
      return std::tuple{config::field("b", &Ba::b, ""), config::field("a", &Ba::a, "")};
    }
  };
  EXPECT_EQ(config::hash(Ab{}), config::hash(Ba{}));
}

TEST(Hash, LeavesOutFieldsOfTheseMeanings) {
  using config::OnResume;
  const auto changes = [](const char* assignment, const std::set<OnResume>& without) {
    return config::hash(with({assignment}), without) != config::hash(Config{}, without);
  };
  for (const std::set<OnResume>& without :
       {std::set<OnResume>{}, {OnResume::kModel}, {OnResume::kModel, OnResume::kData}}) {
    EXPECT_EQ(changes("model.rope.theta=1e4", without), !without.contains(OnResume::kModel));
    EXPECT_EQ(changes("model.rope.interleaved=true", without), !without.contains(OnResume::kData));
    EXPECT_TRUE(changes("model.num_layers=2", without));
    EXPECT_TRUE(changes("seed=5", without));
  }
}

TEST(Fields, AreListedOnceWithPathAndDefault) {
  const auto fields = config::list_fields<Config>();
  EXPECT_EQ(fields.size(), 19u);
  EXPECT_EQ(fields[12].path, "model.rope.theta");
  EXPECT_EQ(fields[12].default_value, "500000.0");
  EXPECT_EQ(fields[12].constraint, "> 0");
}

TEST(Help, GroupsBySection) {
  const std::string text = config::help<Config>();
  EXPECT_THAT(text, HasSubstr("model: the network\n"));
  EXPECT_THAT(text, HasSubstr("model.num_layers=12"));
  EXPECT_THAT(text, HasSubstr("transformer layers (an integer from 1 to 1000)"));
  EXPECT_THAT(text, HasSubstr("fp32 (a number, in s)"));
  const std::string rope = config::help<Config>("model.rope");
  EXPECT_THAT(rope, HasSubstr("theta=500000.0"));
  EXPECT_THAT(rope, Not(HasSubstr("num_layers")));
}

TEST(Help, ExplainsOneKey) {
  const std::string text = config::help<Config>("model.num_layers");
  EXPECT_THAT(text, HasSubstr("model.num_layers: transformer layers\n"));
  EXPECT_THAT(text, HasSubstr("\n  type     an integer\n"));
  EXPECT_THAT(text, HasSubstr("\n  default  12\n"));
  EXPECT_THAT(text, HasSubstr("\n  range    >= 1, <= 1000\n"));
  EXPECT_THAT(text, HasSubstr("\n  section  model: the network\n"));
  EXPECT_THAT(text, Not(HasSubstr("hidden_size")));
}

TEST(Help, SearchesNamesAndHelp) {
  const std::string by_name = config::help<Config>("theta");
  EXPECT_THAT(by_name, HasSubstr("model.rope.theta=500000.0"));
  EXPECT_THAT(by_name, Not(HasSubstr("num_layers")));
  const std::string by_help = config::help<Config>("Transformer LAYERS");
  EXPECT_THAT(by_help, HasSubstr("model.num_layers=12"));
  EXPECT_THAT(by_help, Not(HasSubstr("theta")));
  try {
    config::help<Config>("model.num_layerz");
    FAIL() << "nothing has that name";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("try: pentatron config help model.num_layers"));
  }
  EXPECT_THROW(config::help<Config>("zzzz"), ConfigError);
  EXPECT_THROW(config::help<Config>(" "), ConfigError);
}

TEST(Markdown, HasARowForEveryKey) {
  const std::string text = config::markdown<Config>();
  for (const auto& field : config::list_fields<Config>()) {
    EXPECT_THAT(text, HasSubstr(fmt::format("| `{}` |", field.path)));
  }
}

TEST(JsonSchema, DescribesTypesBoundsAndDefaults) {
  const auto schema = nlohmann::json::parse(config::json_schema<Config>("example"));
  EXPECT_EQ(schema["title"], "example");
  EXPECT_EQ(schema["additionalProperties"], false);
  const auto& model = schema["properties"]["model"]["properties"];
  EXPECT_EQ(model["num_layers"]["type"], "integer");
  EXPECT_EQ(model["num_layers"]["maximum"], 1000);
  EXPECT_EQ(model["dropout"]["exclusiveMaximum"], 1.0);
  EXPECT_EQ(model["norm"]["enum"], (std::vector<std::string>{"layernorm", "rmsnorm", "rms"}));
  EXPECT_EQ(model["rope"]["properties"]["theta"]["default"], 500000.0);
  EXPECT_EQ(model["kv_channels"]["anyOf"][1]["type"], "null");
  EXPECT_EQ(schema["properties"]["dataset"]["properties"]["path"]["minItems"], 1);
  EXPECT_EQ(schema["properties"]["include"]["anyOf"][1]["type"], "array");
}

TEST(Enum, SpellsAndReadsNames) {
  static_assert(config::to_string(NormKind::kRms) == "rmsnorm");
  static_assert(config::from_string<NormKind>("rms") == NormKind::kRms);
  EXPECT_FALSE(config::from_string<NormKind>("RMS").has_value());
}

TEST(Schema, RefusesAFieldListedTwice) {
  struct Twice {
    int64_t a = 1;
    static constexpr auto fields() {
      return std::tuple{config::field("a", &Twice::a, ""), config::field("a", &Twice::a, "")};
    }
  };
  EXPECT_THROW(config::to_yaml(Twice{}), Error);
}

TEST(Suggest, NearestDivisorAndMultiple) {
  EXPECT_EQ(config::nearest_divisor(32, 6), 4);
  EXPECT_EQ(config::nearest_divisor(30, 7), 6);
  EXPECT_EQ(config::nearest_divisor(32, 100), 32);
  EXPECT_EQ(config::nearest_divisor(0, 4), 1);
  EXPECT_EQ(config::nearest_multiple(64, 100), 128);
  EXPECT_EQ(config::nearest_multiple(64, 1), 64);
}

TEST(Diff, TellsWhatAnotherValueMeansOnResuming) {
  using config::OnResume;
  std::map<std::string, OnResume> meanings;
  for (const config::Difference& d :
       config::diff(Config{}, with({"model.rope.theta=1e4", "model.rope.interleaved=true",
                                    "model.num_layers=2", "seed=5"})))
    meanings[d.path] = d.on_resume;
  EXPECT_EQ(meanings, (std::map<std::string, OnResume>{
                          {"model.rope.theta", OnResume::kModel},      // as its section
                          {"model.rope.interleaved", OnResume::kData}, // its own
                          {"model.num_layers", OnResume::kTold},       // nothing said
                          {"seed", OnResume::kTold}}));
}

TEST(Diff, TellsWhatBelongsToTheTask) {
  for (const config::Difference& d :
       config::diff(Config{}, with({"model.vocab_size=64", "model.num_layers=2"})))
    EXPECT_EQ(d.of_task, d.path == "model.vocab_size") << d.path;
}

} // namespace
} // namespace pentatron::config_example
