// The names of classes stay with a model: in checkpoints, when it is tuned on, evaluated, exported.
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/data/dataset.h"
#include "pentatron/trainer/checkpoint_export.h"
#include "pentatron/trainer/score_labels.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Labels = std::vector<std::string>; ///< as JSON

class LabelNames : public testing::Test {
 protected:
  /// Texts of letters with these labels in turn.
  std::string write(const std::string& name, const Labels& labels) const {
    const Stream stream(7, "letters");
    std::ofstream out(scratch / name);
    uint64_t n = 0;
    for (int i = 0; i < 24; ++i) {
      std::string text;
      for (int c = 0; c < 6; ++c)
        text += static_cast<char>('a' + static_cast<int>(26 * stream.uniform(n++)));
      out << fmt::format(R"({{"text": "{}", "label": {}}})", text,
                         labels[static_cast<size_t>(i) % labels.size()])
          << '\n';
    }
    return scratch / name;
  }
  /// A classifier; the type of its data is that of its head.
  Config classifier(const std::string& name, const Labels& labels,
                    std::vector<std::string> more = {}) const {
    const std::string file = write(name + ".jsonl", labels);
    more.insert(more.begin(), {"model.type=bert", "model.head=classification", "model.num_labels=3",
                               "dataset.path=", "dataset.train_data_path=" + file,
                               "dataset.valid_data_path=" + file, "dataset.full_validation=true",
                               "train.eval_interval=2", "train.train_iters=2",
                               "checkpoint.save=" + (scratch / name),
                               "logger.dir=" + (scratch / (name + "_log"))});
    return test::tiny("", std::move(more));
  }
  std::vector<std::string> from(const std::string& name, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"checkpoint.load=" + (scratch / name), "checkpoint.finetune=true"});
    return more;
  }
  /// The validation loss of a model before its first step, or the error.
  static double loss(Config config) {
    config.train.train_iters = 0;
    config.checkpoint.save.clear();
    return test::run(config).report.validation->loss.value();
  }
  std::vector<std::string> saved_names(const std::string& name) const {
    return checkpoint::open_model(scratch / name)->config().label_names;
  }
  const test::Scratch scratch;
  const Labels all = {"\"glad\"", "\"calm\"", "\"sad\""}; ///< sorted: calm, glad, sad
};

TEST_F(LabelNames, LieInTheCheckpointAndAreKeptByWhatStartsFromIt) {
  test::run(classifier("first", all));
  EXPECT_THAT(saved_names("first"), ElementsAre("calm", "glad", "sad"));
  // Data without the first class, which alone would be 0 and 1.
  const Labels two = {"\"sad\"", "\"glad\""};
  const double named = loss(classifier("named", two, from("first")));
  EXPECT_EQ(named, loss(classifier("numbered", {"2", "1"}, from("first"))));
  EXPECT_NE(named, loss(classifier("others", {"1", "0"}, from("first"))));
  test::run(classifier("tuned", two, from("first")));
  EXPECT_THAT(saved_names("tuned"), ElementsAre("calm", "glad", "sad"));
}

TEST_F(LabelNames, AResumedRunKeepsThem) {
  test::run(classifier("run", all));
  const std::vector<std::string> on = {"checkpoint.load=" + (scratch / "run"),
                                       "train.train_iters=4"};
  // The order of the samples is that of the data; only the numbers of the classes are compared.
  const Config named = classifier("run", {"\"sad\"", "\"glad\""}, on);
  EXPECT_THAT(named.model.label_names, ElementsAre("calm", "glad", "sad"));
  const test::Trace a = test::run(named);
  EXPECT_EQ(a.report.iterations, 4);
  EXPECT_THAT(saved_names("run"), ElementsAre("calm", "glad", "sad"));
}

TEST_F(LabelNames, UnknownAndRenumberedOnesAreRefused) {
  test::run(classifier("first", all));
  const Labels four = {"\"glad\"", "\"calm\"", "\"sad\"", "\"bored\""};
  EXPECT_THAT(
      error_of([&] { test::run(classifier("more", four, from("first"))); }),
      AllOf(
          HasSubstr(
              "has label=\"bored\", which is not one of the classes of the model: calm, glad, sad"),
          HasSubstr("try: data without this label, or a new head with "
                    "model.num_labels=4")));
  const auto renamed = [&](const std::string& names) {
    return error_of(
        [&] { classifier("renamed", all, from("first", {"model.label_names=" + names})); });
  };
  EXPECT_THAT(renamed("[glad, calm, sad]"),
              AllOf(HasSubstr("model.label_names=[glad,calm,sad] does not match the classes of the "
                              "model in checkpoint.load="),
                    HasSubstr("try: model.label_names=[calm,glad,sad]")));
  EXPECT_THAT(renamed("[calm, glad]"), HasSubstr("try: model.label_names=[calm,glad,sad]"));
  EXPECT_NO_THROW(classifier("same", all, from("first", {"model.label_names=[calm, glad, sad]"})));
}

TEST_F(LabelNames, AClassWithoutANameMayGetOne) {
  test::run(classifier("first", {"\"calm\"", "\"sad\""}));
  EXPECT_THAT(saved_names("first"), ElementsAre("calm", "sad"));
  const std::string error = error_of([&] { test::run(classifier("more", all, from("first"))); });
  EXPECT_THAT(error, HasSubstr("try: model.label_names=[calm,sad,glad]"));
  const auto tuned =
      classifier("more", all, from("first", {error.substr(error.find("model.label_names="))}));
  EXPECT_EQ(loss(tuned), loss(classifier("numbers", {"2", "0", "1"}, from("first"))));
}

TEST_F(LabelNames, ANewHeadHasThoseOfItsData) {
  test::write_stories(scratch / "texts.jsonl", 50);
  test::run(test::tiny(scratch / "texts.jsonl",
                       {"model.type=bert", "model.num_layers=1", "train.train_iters=1",
                        "checkpoint.save=" + (scratch / "encoder")}));
  const Config tuned = classifier("tuned", all, from("encoder", {"checkpoint.strictness=log_all"}));
  EXPECT_THAT(tuned.model.label_names, IsEmpty());
  test::run(tuned);
  EXPECT_THAT(saved_names("tuned"), ElementsAre("calm", "glad", "sad"));
}

TEST_F(LabelNames, AHeadOfAnotherSizeBeginsAnew) {
  test::run(classifier("first", all));
  const std::string exported =
      export_checkpoint(checkpoint::open_model(scratch / "first")->facts().path).string();
  const Labels four = {"\"glad\"", "\"calm\"", "\"sad\"", "\"bored\""};
  const std::vector<std::string> anew = {"model.num_labels=4", "checkpoint.strictness=log_all"};
  test::run(classifier("more", four, from("first", anew)));
  EXPECT_THAT(saved_names("more"), ElementsAre("bored", "calm", "glad", "sad"));
  std::vector<std::string> imported = anew;
  imported.push_back("checkpoint.load=hf:" + exported);
  test::run(classifier("imported", four, imported));
  EXPECT_THAT(saved_names("imported"), ElementsAre("bored", "calm", "glad", "sad"));
  // Both begin with the same encoder, and the same new head.
  EXPECT_NEAR(loss(classifier("a", four, from("first", anew))),
              loss(classifier("b", four, imported)), 1e-6);
  EXPECT_THAT(error_of([&] { test::run(classifier("c", four, from("first", {anew[0]}))); }),
              HasSubstr("try: checkpoint.strictness=log_all"));
}

TEST_F(LabelNames, GoToHuggingFaceAndComeBack) {
  test::run(classifier("first", all));
  const fs::path exported =
      export_checkpoint(checkpoint::open_model(scratch / "first")->facts().path);
  const Json json = read_json(exported / "config.json");
  EXPECT_EQ(json["id2label"], (Json{{"0", "calm"}, {"1", "glad"}, {"2", "sad"}}));
  EXPECT_EQ(json["label2id"], (Json{{"calm", 0}, {"glad", 1}, {"sad", 2}}));
  const Config back =
      classifier("back", {"\"sad\"", "\"glad\""}, {"checkpoint.load=hf:" + exported.string()});
  EXPECT_THAT(back.model.label_names, ElementsAre("calm", "glad", "sad"));
  EXPECT_EQ(loss(back), loss(classifier("same", {"2", "1"}, from("first"))));
}

TEST_F(LabelNames, ScoresOfFilesAreThoseOfValidation) {
  const test::Trace run = test::run(classifier("first", all));
  const auto source = checkpoint::open_model(scratch / "first");
  data::DatasetConfig dataset;
  dataset.type = data::DatasetType::kClassification;
  dataset.path = scratch / "first.jsonl";
  dataset.split = "0,1,0";
  const LabelScore score = score_labels(*source, data::make_tokenizer({}), dataset, {});
  EXPECT_EQ(score.samples, 24);
  EXPECT_NEAR(score.evaluation.loss.value(), run.report.validation->loss.value(), 1e-6);
  EXPECT_EQ(score.evaluation.figures.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(score.evaluation.figures[i].first, run.report.validation->figures[i].first);
    EXPECT_NEAR(score.evaluation.figures[i].second, run.report.validation->figures[i].second, 1e-6);
  }
  EXPECT_THAT(
      error_of([&] { score_labels(*source, data::make_tokenizer({}), dataset, {.context = 100}); }),
      HasSubstr("try: --context 64"));
}

} // namespace
} // namespace pentatron::trainer
