// dataset.type=classification as the trainer opens it.
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/config/config.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/loader.h"
#include "tests/data/data_files.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kLabelled = PENTATRON_TEST_DATA "/labelled/";

class Classification : public ::testing::Test {
 protected:
  static DatasetConfig config(const std::string& path) {
    return {.type = DatasetType::kClassification, .path = path, .split = "1"};
  }
  static std::shared_ptr<const Tokenizer> tokenizer(const std::string& name) {
    return make_tokenizer({.path = PENTATRON_TEST_DATA "/tokenizers/" + name + ".json",
                           .eod = name == "bert" ? "[SEP]" : "<|endoftext|>"});
  }
  /// Of an encoder with a head of `classes` classes; 0: any number.
  static std::vector<BatchField> fields(int64_t classes = 3) {
    BatchField labels = label_field("");
    labels.limit = classes;
    if (classes == 0) {
      labels.type = FieldType::kFloat64;
      labels.fill = std::numeric_limits<double>::quiet_NaN();
      labels.none = labels.fill;
    }
    return {{.name = "input_ids"}, {.name = "token_type_ids"}, labels};
  }
  static DatasetContext context(std::vector<BatchField> fields = Classification::fields()) {
    return {.sequence_length = 12,
            .vocab_size = 1000,
            .fields = std::move(fields),
            .tokenizer = make_tokenizer({})};
  }
  static Batch batch_of(const Dataset& dataset, int64_t count, int64_t first = 0) {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    std::iota(ids.begin(), ids.end(), first);
    return make_batch(dataset, ids);
  }
  /// The texts of bytes in a batch, with their labels.
  static std::map<std::string, double> samples(const Batch& batch) {
    std::map<std::string, double> all;
    const StreamShape& stream = batch.stream("tokens");
    for (int64_t r = 0; r < batch.batch_size; ++r) {
      std::string text;
      for (int64_t i = 0; i < stream.sequence_length; ++i) {
        const int64_t id = batch.ints("input_ids")[static_cast<size_t>(r * 12 + i)];
        text += id < 256 ? static_cast<char>(id) : "$_<|"[id - 256];
      }
      const FieldValues& labels = batch.fields.at("labels");
      const auto row = static_cast<size_t>(r);
      all[text] = labels.ints.empty() ? labels.floats[row] : static_cast<double>(labels.ints[row]);
    }
    return all;
  }
  std::map<std::string, double> read(const DatasetConfig& config, const DatasetContext& context) {
    const Datasets sets = open_datasets(config, context);
    summary = sets.summary;
    return samples(batch_of(*sets.train, sets.train->samples_per_epoch()));
  }
  std::string error(const std::string& lines, const DatasetContext& context,
                    DatasetConfig config = {}) {
    config.type = DatasetType::kClassification;
    config.path = folder.write("bad.jsonl", lines);
    return error_of([&] { open_datasets(config, context); });
  }
  TemporaryFolder folder;
  std::string summary;
};

TEST_F(Classification, SamplesAreThoseOfTransformers) {
  using Row = std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, int64_t>;
  std::map<std::pair<std::string, int64_t>, std::multiset<Row>> expected;
  std::map<std::pair<std::string, int64_t>, int64_t> count;
  std::ifstream in(std::string(kLabelled) + "expected.jsonl");
  for (std::string line; std::getline(in, line);) {
    const Json row = parse_json(line, "expected.jsonl");
    const auto ints = [&](const char* key) { return row[key].get<std::vector<int64_t>>(); };
    const std::pair<std::string, int64_t> of{row["tokenizer"], row["length"]};
    expected[of].insert({ints("ids"), ints("types"), ints("mask"), count[of]++ % 3});
  }
  ASSERT_EQ(expected.size(), 8u);
  for (const auto& [of, rows] : expected) {
    DatasetContext with = context();
    with.tokenizer = tokenizer(of.first);
    with.sequence_length = of.second;
    const Datasets sets = open_datasets(config(std::string(kLabelled) + "texts.jsonl"), with);
    const Batch batch = batch_of(*sets.train, sets.train->samples_per_epoch());
    std::multiset<Row> made;
    for (int64_t r = 0; r < batch.batch_size; ++r) {
      const auto row_of = [&](const char* name) {
        const auto begin = batch.ints(name).begin() + r * of.second;
        return std::vector<int64_t>(begin, begin + of.second);
      };
      std::vector<int64_t> mask(static_cast<size_t>(of.second), 1);
      if (const auto& real = batch.stream("tokens").real; !real.empty())
        std::fill(mask.begin() + real[static_cast<size_t>(r)].end, mask.end(), 0);
      made.insert({row_of("input_ids"), row_of("token_type_ids"), mask,
                   batch.ints("labels")[static_cast<size_t>(r)]});
    }
    EXPECT_EQ(made, rows) << of.first << " " << of.second;
  }
}

TEST_F(Classification, ATokenizerWithoutATemplateGetsThatOfBert) {
  const std::string file =
      folder.write("a.jsonl", "{\"text\": \"ab\", \"label\": 1}\n"
                              "{\"text\": \"cd\", \"text_pair\": \"efghijkl\", \"label\": 2}\n"
                              "{\"text\": \"mn\", \"text_pair\": null, \"label\": 0.0}\n");
  EXPECT_THAT(read(config(file), context()),
              ElementsAre(std::pair("<ab|________", 1), std::pair("<cd|efghijk|", 2),
                          std::pair("<mn|________", 0)));
  EXPECT_THAT(summary, AllOf(HasSubstr("[PAD]=257, [CLS]=258, [SEP]=259"),
                             HasSubstr("with their samples: 0 (1), 1 (1), 2 (1)")));
  EXPECT_THAT(error_of([&] {
                DatasetContext small = context();
                small.vocab_size = 259;
                open_datasets(config(file), small);
              }),
              HasSubstr("try: model.vocab_size=260"));
  // And so does one whose tokens are named.
  DatasetContext with = context();
  with.tokenizer = tokenizer("roberta");
  DatasetConfig named = config(file);
  const auto first = [&] {
    return batch_of(*open_datasets(named, with).train, 3).ints("input_ids")[0];
  };
  EXPECT_EQ(first(), 0); // of the template in the file
  named.cls_token = "<mask>";
  EXPECT_EQ(first(), *with.tokenizer->token_id("<mask>"));
  named.cls_token.clear();
  named.sep_token = "<mask>";
  const std::vector<int64_t> ids = batch_of(*open_datasets(named, with).train, 3).ints("input_ids");
  EXPECT_EQ(std::ranges::count(ids, *with.tokenizer->token_id("<mask>")), 4);
  named.sep_token.clear();
  named.pad_token = "<mask>";
  const std::vector<int64_t> pad = batch_of(*open_datasets(named, with).train, 3).ints("input_ids");
  EXPECT_EQ(pad[11], *with.tokenizer->token_id("<mask>"));
}

TEST_F(Classification, EveryEpochHasEverySampleOnceInAnotherOrder) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += fmt::format("{{\"text\": \"t{}\", \"label\": {}}}\n", i, i % 3);
  DatasetConfig c = config(folder.write("a.jsonl", lines));
  const auto train = open_datasets(c, context()).train;
  EXPECT_EQ(train->samples_per_epoch(), 40);
  EXPECT_FALSE(train->size());
  const Batch one = batch_of(*train, 40), two = batch_of(*train, 40, 40);
  EXPECT_EQ(samples(one).size(), 40u);
  EXPECT_EQ(samples(one), samples(two));
  EXPECT_NE(one.ints("input_ids"), two.ints("input_ids"));
  EXPECT_EQ(batch_of(*open_datasets(c, context()).train, 40).ints("labels"), one.ints("labels"));
  Loader right(train, {.global_batch_size = 8,
                       .micro_batch_size = 4,
                       .rank = 1,
                       .size = 2,
                       .consumed_samples = 16});
  EXPECT_EQ(right.next().microbatches[0].ints("input_ids"),
            batch_of(*train, 4, 20).ints("input_ids"));
  c.seed = 7;
  EXPECT_NE(batch_of(*open_datasets(c, context()).train, 40).ints("input_ids"),
            one.ints("input_ids"));
}

TEST_F(Classification, AllValidationDataAreEvaluatedOnceEach) {
  std::string lines;
  for (int i = 0; i < 50; ++i)
    lines += fmt::format("{{\"text\": \"t{}\", \"label\": {}}}\n", i, i % 3);
  DatasetConfig c = config(folder.write("a.jsonl", lines));
  c.split = "70,26,4";
  const Datasets sets = open_datasets(c, context());
  EXPECT_EQ(sets.train_size.documents, 35);
  EXPECT_EQ(sets.validation_size.documents, 13);
  EXPECT_EQ(sets.test_size.documents, 2);
  EXPECT_EQ(sets.validation_size.tokens, 13 * 5);
  Loader loader(sets.validation,
                {.global_batch_size = 8, .micro_batch_size = 8, .pad_last_batch = true});
  std::map<std::string, double> all;
  int64_t targets = 0;
  for (int step = 0; step < 2; ++step) {
    StepData data = loader.next();
    targets += data.num_targets.at("labels");
    all.merge(samples(data.microbatches[0]));
  }
  EXPECT_EQ(targets, 13);
  EXPECT_EQ(all.size(), 14u); // and one of padding
  EXPECT_EQ(all.at("____________"), -100);
  for (int i = 35; i < 48; ++i) // in the order of the file
    EXPECT_EQ(all.at(fmt::format("<t{}|_______", i)), i % 3);
}

TEST_F(Classification, NamesOfClassesAreNumbered) {
  DatasetConfig c = config("");
  c.train_data_path = folder.write("a.jsonl", "{\"text\": \"a\", \"label\": \"no\"}\n"
                                              "{\"text\": \"b\", \"label\": \"maybe\"}\n") +
                      "," + folder.write("b.jsonl", "{\"text\": \"c\", \"label\": \"yes\"}\n");
  c.valid_data_path = folder.write("v.jsonl", "{\"text\": \"d\", \"label\": \"yes\"}\n");
  c.test_data_path = folder.write("t.jsonl", "{\"text\": \"e\", \"label\": \"no\"}\n");
  const std::map<std::string, double> sorted{
      {"<a|_________", 1}, {"<b|_________", 0}, {"<c|_________", 2}};
  for (const int64_t workers : {1, 2, 4}) {
    c.num_workers = workers;
    EXPECT_EQ(read(c, context()), sorted);
  }
  EXPECT_THAT(summary, HasSubstr("0=maybe (1), 1=no (1), 2=yes (1)"));
  const Datasets sets = open_datasets(c, context());
  EXPECT_EQ(samples(batch_of(*sets.validation, 1)).at("<d|_________"), 2);
  EXPECT_EQ(samples(batch_of(*sets.test, 1)).at("<e|_________"), 1);
  EXPECT_EQ(sets.files.size(), 4u);
  EXPECT_THAT(sets.label_names, ElementsAre("maybe", "no", "yes"));
  EXPECT_THAT(error_of([&] { open_datasets(c, context(fields(2))); }),
              AllOf(HasSubstr("maybe, no, yes, which are 3, but the model has 2 classes"),
                    HasSubstr("try: model.num_labels=3")));
  folder.write("v.jsonl",
               "{\"text\": \"d\", \"label\": \"no\"}\n{\"text\": \"d\", \"label\": \"never\"}\n");
  EXPECT_THAT(error_of([&] { open_datasets(c, context(fields(4))); }),
              AllOf(HasSubstr("v.jsonl: line 2 has label=\"never\", which is not one of the "
                              "classes of dataset.train_data_path: maybe, no, yes"),
                    HasSubstr("try: model.label_names=[maybe,no,yes,never]")));
  EXPECT_THAT(error_of([&] { open_datasets(c, context()); }),
              HasSubstr("a new head with model.num_labels=4"));
  folder.write("v.jsonl", "{\"text\": \"d\", \"label\": 2}\n");
  EXPECT_THAT(
      error_of([&] { open_datasets(c, context()); }),
      HasSubstr("v.jsonl: line 1 has label=2, but the labels of dataset.train_data_path are "
                "names: maybe, no, yes"));
  folder.write("b.jsonl", "{\"text\": \"c\", \"label\": 2}\n");
  EXPECT_THAT(error_of([&] { open_datasets(c, context()); }),
              AllOf(HasSubstr("b.jsonl: line 1 has label=2, but "),
                    HasSubstr("a.jsonl: line 1 has label=\"no\"")));
}

TEST_F(Classification, NamesOfTheModelKeepTheirNumbers) {
  const DatasetConfig c = config(folder.write("a.jsonl", "{\"text\": \"a\", \"label\": \"no\"}\n"
                                                         "{\"text\": \"b\", \"label\": \"maybe\"}\n"
                                                         "{\"text\": \"c\", \"label\": 1}\n"));
  DatasetContext with = context();
  with.label_names = {"yes", "no", "maybe"};
  EXPECT_THAT(read(c, with), ElementsAre(std::pair("<a|_________", 1), std::pair("<b|_________", 2),
                                         std::pair("<c|_________", 1)));
  EXPECT_EQ(open_datasets(c, with).label_names, with.label_names);
  with.label_names = {"yes", "no"};
  EXPECT_THAT(error_of([&] { open_datasets(c, with); }),
              AllOf(HasSubstr("a.jsonl: line 2 has label=\"maybe\", which is not one of the "
                              "classes of the model: yes, no"),
                    HasSubstr("try: model.label_names=[yes,no,maybe]")));
  with = context(fields(2));
  with.label_names = {"yes", "no"};
  EXPECT_THAT(error_of([&] { open_datasets(c, with); }), HasSubstr("try: data without this label"));
}

TEST_F(Classification, NumbersAreLabelsOfAModelThatPredictsThem) {
  const std::string lines = "{\"text\": \"a\", \"label\": 2.5}\n{\"text\": \"b\", \"label\": -3}\n";
  DatasetConfig c = config(folder.write("a.jsonl", lines));
  const auto read_all = read(c, context(fields(0)));
  EXPECT_THAT(read_all, ElementsAre(std::pair("<a|_________", 2.5), std::pair("<b|_________", -3)));
  EXPECT_THAT(summary, HasSubstr("labels in the training data: -3 to 2.5"));
  c.split = "1,1";
  const Datasets sets = open_datasets(c, context(fields(0)));
  const Batch padded = make_batch(*sets.validation, std::vector<int64_t>{0, -1});
  EXPECT_TRUE(std::isnan(padded.floats("labels")[1]));
  EXPECT_EQ(padded.num_targets.at("labels"), 1);
  EXPECT_THAT(error("{\"text\": \"a\", \"label\": 1}\n{\"text\": \"a\", \"label\": \"x\"}\n",
                    context(fields(0))),
              HasSubstr("bad.jsonl: line 2 has label=\"x\", which is a string, but the model "
                        "predicts a number"));
}

TEST_F(Classification, ALabelThatIsNoClassIsNamedWithItsPlace) {
  const std::string good = "{\"text\": \"a\", \"label\": 2}\n";
  EXPECT_THAT(
      error(good + "{\"text\": \"a\", \"label\": 3}\n", context()),
      AllOf(HasSubstr("bad.jsonl: line 2 has label=3, but the classes of the model are 0 to 2"),
            HasSubstr("try: labels from 0 to 2, or a new head with model.num_labels=4")));
  EXPECT_THAT(error("{\"text\": \"a\", \"label\": -1}\n", context()),
              HasSubstr("bad.jsonl: line 1 has label=-1"));
  BatchField any = label_field("");
  EXPECT_THAT(error("{\"text\": \"a\", \"label\": -1}\n", context({{.name = "input_ids"}, any})),
              HasSubstr("classes of the model are 0 and more"));
  EXPECT_THAT(error("[" + good + ", {\"text\": \"a\", \"label\": 0.5}]", context()),
              AllOf(HasSubstr("bad.jsonl: element 2 has label=0.5, which is a fraction"),
                    HasSubstr("or model.head=regression")));
  // Whatever dataset.on_bad_input says of other lines.
  EXPECT_THAT(error(good + "{\"text\": \"a\", \"label\": 3}\n", context(),
                    {.on_bad_input = OnBadInput::kSkip}),
              HasSubstr("label=3"));
}

TEST_F(Classification, BadLinesFollowTheirRule) {
  const std::string good = "{\"text\": \"a\", \"label\": 2}\n";
  const std::string stars = "{\"text\": \"a\", \"stars\": 1}\n";
  EXPECT_THAT(error(stars, context()), AllOf(HasSubstr("bad.jsonl: line 1 has no key \"label\""),
                                             HasSubstr("try: dataset.label_key=stars")));
  EXPECT_THAT(error("{\"body\": \"a\", \"label\": 1}\n", context()),
              HasSubstr("try: dataset.text_key=body"));
  EXPECT_THAT(error(good + stars, context()), HasSubstr("try: dataset.on_bad_input=skip"));
  EXPECT_THAT(error("{\"text\": \"a\", \"label\": true}\n", context()),
              AllOf(HasSubstr("line 1 has neither a number nor a string under the key \"label\""),
                    HasSubstr("try: \"label\": 0, or \"label\": \"the name of a class\"")));
  for (const std::string number : {"NaN", "Infinity", "-Infinity"})
    EXPECT_THAT(error("{\"text\": \"a\", \"label\": " + number + "}\n", context()),
                HasSubstr("bad.jsonl: line 1 contains " +
                          number.substr(number.find_first_not_of('-')) + ", which is not JSON"));
  const std::string file = folder.write(
      "a.jsonl", good + stars + "{bad\n\n" + "{\"text\": \"a\", \"label\": null}\n" +
                     "{\"text\": \"\xFF\", \"label\": 1}\n{\"text\": 3, \"label\": 1}\n" +
                     "{\"text\": \"b\", \"text_pair\": 5, \"label\": 1}\n" +
                     "{\"text\": \"b\", \"label\": 1, \"label\": 0}\n" + "{\"text\": \"" +
                     std::string(200, 'x') + "\", \"label\": 1}\n");
  DatasetConfig c = config(file);
  c.on_bad_input = OnBadInput::kSkip;
  c.max_line_bytes = 150;
  EXPECT_THAT(read(c, context()), ElementsAre(std::pair("<a|_________", 2)));
  EXPECT_EQ(open_datasets(c, context()).report->skips().size(), 8u);
  EXPECT_THAT(summary, AllOf(HasSubstr("skipped 8:"), HasSubstr("1 with invalid UTF-8"),
                             HasSubstr("4 without the key"), HasSubstr("1 line too long"),
                             HasSubstr("line 2 has no key \"label\"; its keys are")));
  EXPECT_THAT(error("\n", context()),
              AllOf(HasSubstr("bad.jsonl contains no documents"),
                    HasSubstr("try: JSON Lines ({\"text\": \"...\", \"label\": 0}")));
  c.path = folder.write("a.csv", "a,0\n");
  EXPECT_THAT(
      error_of([&] { open_datasets(c, context()); }),
      HasSubstr("a.csv is a text file, but dataset.type=classification reads JSON objects"));
}

TEST_F(Classification, ReadsArchivesArraysAndOtherKeys) {
  const std::string lines = "{\"a\": \"1\", \"b\": \"2\", \"c\": 1}\n{\"a\": \"3\", \"c\": 0}\n";
  DatasetConfig c = config(folder.write("a.jsonl", lines));
  c.text_key = "a";
  c.text_pair_key = "b";
  c.label_key = "c";
  const auto expected = read(c, context());
  EXPECT_THAT(expected, ElementsAre(std::pair("<1|2|_______", 1), std::pair("<3|_________", 0)));
  c.path = folder.write("b.jsonl.gz", gzip(lines));
  EXPECT_EQ(read(c, context()), expected);
  c.path = folder.write("c.jsonl.zst", zstd(lines));
  EXPECT_EQ(read(c, context()), expected);
  c.path = folder.write("d.json", "[" + lines.substr(0, lines.find('\n')) + "," +
                                      lines.substr(lines.find('\n')) + "]");
  EXPECT_EQ(read(c, context()), expected);
}

TEST_F(Classification, ReadsTabSeparatedValues) {
  DatasetConfig c = config(folder.write("a.tsv", "id\ta\tb\tc\n0\t\"1\t2\t1\n1\t3\t4\t0\n"));
  c.text_key = "a";
  c.text_pair_key = "b";
  c.label_key = "c";
  EXPECT_THAT(read(c, context()),
              ElementsAre(std::pair("<\"1|2|______", 1), std::pair("<3|4|_______", 0)));
  // Without names, and numbers that are none of classes.
  c.path = folder.write("b.tsv", "gj04\t1\t\tOne\nbc\t0\t*\tTwo\n");
  c.text_key = "4";
  c.text_pair_key = "text_pair";
  c.label_key = "2";
  EXPECT_THAT(read(c, context()),
              ElementsAre(std::pair("<One|_______", 1), std::pair("<Two|_______", 0)));
  c.path = folder.write("c.tsv", "score\ttext\n3.25\tx\n-1e-1\ty\n");
  c.text_key = "text";
  c.label_key = "score";
  EXPECT_THAT(read(c, context(fields(0))),
              ElementsAre(std::pair("<x|_________", 3.25), std::pair("<y|_________", -0.1)));
  c.path = folder.write("d.tsv", "score\ttext\nnot_entailment\tx\nentailment\ty\n");
  EXPECT_THAT(read(c, context()),
              ElementsAre(std::pair("<x|_________", 1), std::pair("<y|_________", 0)));
  c.path = folder.write("e.tsv", "score\ttext\n1\n");
  EXPECT_THAT(error_of([&] { open_datasets(c, context()); }),
              AllOf(HasSubstr("e.tsv: line 2"), HasSubstr("has no key \"text\"")));
}

TEST_F(Classification, SeveralValidationSetsAreKeptApart) {
  const std::string line = "{\"text\": \"a\", \"label\": 1}\n";
  DatasetConfig c = config("");
  c.train_data_path = folder.write("a.jsonl", line);
  c.valid_data_path = folder.write("m.jsonl", line + line) + "," + folder.write("n.jsonl", line);
  EXPECT_EQ(open_datasets(c, context()).validation->samples_per_epoch(), 3);
  c.multiple_validation_sets = true;
  const Datasets sets = open_datasets(c, context());
  ASSERT_EQ(sets.validation_sets.size(), 2u);
  EXPECT_EQ(sets.validation_sets[0].name, "m.jsonl");
  EXPECT_EQ(sets.validation_sets[0].dataset->size(), 2);
  EXPECT_EQ(sets.validation_sets[1].dataset->size(), 1);
  EXPECT_EQ(sets.validation, sets.validation_sets[0].dataset);
  EXPECT_EQ(sets.validation_size.documents, 3);
  c.train_data_path.clear();
  EXPECT_THAT(error_of([&] { open_datasets(c, context()); }),
              HasSubstr("try: dataset.train_data_path=FILE.jsonl"));
}

TEST_F(Classification, WhatTheModelCannotTakeIsAnError) {
  const std::string file = std::string(kLabelled) + "texts.jsonl";
  DatasetContext with = context();
  with.tokenizer = tokenizer("bert");
  with.sequence_length = 2;
  EXPECT_THAT(
      error_of([&] { open_datasets(config(file), with); }),
      AllOf(HasSubstr("train.seq_length=2 leaves no room"), HasSubstr("try: train.seq_length=6")));
  with.sequence_length = 3; // enough for a text, not for a pair
  EXPECT_THAT(error_of([&] { open_datasets(config(file), with); }),
              HasSubstr("texts.jsonl: line 1: a length of 3 leaves no room"));
  with.sequence_length = 20;
  with.fields[1].limit = 1;
  EXPECT_THAT(error_of([&] { open_datasets(config(file), with); }),
              AllOf(HasSubstr("texts.jsonl: line 1: the tokenizer assigns type 1 to a token, but "
                              "the model has 1 types"),
                    HasSubstr("try: model.num_tokentypes=2")));
}

TEST(ClassificationKeys, AreChecked) {
  const auto problems = [](DatasetConfig c) {
    pentatron::config::Violations violations;
    pentatron::config::validate(c, violations);
    return violations.text();
  };
  const auto type = DatasetType::kClassification;
  EXPECT_EQ(problems({.type = type, .path = "a.jsonl"}), "");
  EXPECT_EQ(problems({.type = type, .train_data_path = "a.jsonl", .valid_data_path = "b.jsonl"}),
            "");
  EXPECT_THAT(problems({.type = type}), HasSubstr("try: path=FILE.jsonl"));
  EXPECT_THAT(problems({.type = type, .path = "a", .train_data_path = "b"}),
              HasSubstr("takes exactly one of path, train_data_path (with valid_data_path and "
                        "test_data_path), but more are given"));
  EXPECT_THAT(problems({.type = type, .path = "a", .mask_prob = 0.3}), HasSubstr("no effect"));
  for (const DatasetConfig& c :
       {DatasetConfig{.text_pair_key = "b"}, DatasetConfig{.label_key = "b"}})
    EXPECT_THAT(problems(c), HasSubstr("has no effect without type=classification"));
}

} // namespace
} // namespace pentatron::data
