// A trained encoder gets a head, and learns what the labels say.
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

/// Words of three letters; `label` says it of the number of words with an "a", out of eight.
template <class Label>
std::string write_labelled(const std::string& file, int count, uint64_t seed, Label label) {
  const Stream stream(seed, "labelled");
  uint64_t n = 0;
  std::ofstream out(file);
  for (int i = 0; i < count; ++i) {
    const double share = stream.uniform(n++);
    std::string text;
    int found = 0;
    for (int w = 0; w < 8; ++w) {
      const bool with = stream.uniform(n++) < share;
      found += with ? 1 : 0;
      for (const char vowel : {'-', with ? 'a' : 'e', '-'})
        text += vowel == '-' ? static_cast<char>('m' + static_cast<int>(10 * stream.uniform(n++)))
                             : vowel;
      text += ' ';
    }
    out << fmt::format(R"({{"text": "{}", "label": {}}})", text, label(found)) << '\n';
  }
  return file;
}

class Tuning : public testing::Test {
 protected:
  Config config(const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(),
                {"model.type=bert", "model.num_layers=2", "model.hidden_size=32",
                 "model.num_attention_heads=2", "model.vocab_size=300", "train.seq_length=40",
                 "train.micro_batch_size=32", "train.global_batch_size=32", "optimizer.lr=3e-3",
                 "optimizer.min_lr=3e-4", "logger.dir=" + (scratch / name)});
    return test::tiny(scratch / "texts.jsonl", std::move(more));
  }
  /// The last evaluation of the encoder of `pretrained()` with a new head.
  template <class Label> Json tuned(const std::string& head, Label label) {
    write_labelled(scratch / "train.jsonl", 512, 1, label);
    write_labelled(scratch / "valid.jsonl", 128, 2, label);
    const test::Trace trace = test::run(
        config(head, {"model.head=" + head, "dataset.type=classification",
                      "dataset.path=", "dataset.train_data_path=" + (scratch / "train.jsonl"),
                      "dataset.valid_data_path=" + (scratch / "valid.jsonl"),
                      "dataset.full_validation=true", "train.train_iters=150",
                      "train.eval_interval=150", "checkpoint.load=" + pretrained(),
                      "checkpoint.finetune=true", "checkpoint.strictness=log_all"}));
    return test::read_metrics(trace.report.metrics.string(), true).back();
  }

  const test::Scratch scratch;

 private:
  std::string pretrained() {
    test::write_stories(scratch / "texts.jsonl", 200);
    const std::string folder = scratch / "checkpoints";
    test::run(config("pretraining",
                     {"dataset.type=bert", "train.train_iters=2", "checkpoint.save=" + folder}));
    return folder;
  }
};

TEST_F(Tuning, FindsTheClassesOfTexts) {
  const Json last = tuned("classification", [](int found) { return found > 4 ? 1 : 0; });
  EXPECT_GE(last["validation_accuracy"].get<double>(), 0.9) << last.dump();
  EXPECT_GE(last["validation_f1"].get<double>(), 0.85) << last.dump();
  EXPECT_GE(last["validation_matthews"].get<double>(), 0.8) << last.dump();
}

TEST_F(Tuning, FindsTheNumbersOfTexts) {
  const Json last = tuned("regression", [](int found) { return found / 8.0; });
  EXPECT_GE(last["validation_pearson"].get<double>(), 0.9) << last.dump();
  EXPECT_GE(last["validation_spearman"].get<double>(), 0.9) << last.dump();
}

} // namespace
} // namespace pentatron::trainer
