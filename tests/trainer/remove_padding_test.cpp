// train.remove_padding: the same training as with padding, of fewer tokens.
#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "tests/support/ranks.h"
#include "tests/trainer/layout_runs.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kRemove = " train.remove_padding=true";

TEST(RemovedPadding, ChangesNoTraining) {
  for (const std::string work : {"bert", "bert_pre", "bert_frozen", "classes", "numbers", "t5",
                                 "t5_pairs", "sft", "sft_single", "sft_moe"}) {
    SCOPED_TRACE(work);
    const std::string keys = " dtype=fp64 train.train_iters=8 train.eval_interval=8";
    const test::Trained& padded = test::one_rank(work, keys);
    for (const std::string micro : {"1", "4", "8"}) {
      SCOPED_TRACE(micro);
      expect_same_training(
          test::train_layout(work, 1, keys + " train.micro_batch_size=" + micro + kRemove), padded,
          test::bounds_of("fp64"));
    }
  }
}

TEST(RemovedPadding, ChangesNoFigureOfSamples) {
  const test::Scratch scratch;
  test::write_labels(scratch, 200);
  const auto figures = [&](const std::string& keys) {
    const std::string all = "dtype=fp64 dataset.full_validation=true logger.dir=";
    Trainer trainer(test::layout_config("classes", all + keys, 1, scratch), {});
    return trainer.run().validation.value();
  };
  const Evaluation padded = figures(""), removed = figures(kRemove);
  ASSERT_FALSE(padded.figures.empty());
  EXPECT_NEAR(removed.loss.value(), padded.loss.value(), 1e-10 * padded.loss.value());
  ASSERT_EQ(removed.figures.size(), padded.figures.size());
  for (size_t i = 0; i < padded.figures.size(); ++i) {
    EXPECT_EQ(removed.figures[i].first, padded.figures[i].first);
    EXPECT_NEAR(removed.figures[i].second, padded.figures[i].second, 1e-10);
  }
}

/// Prepared batches of one step: rows of 12 tokens, with padding on either side.
class Prepared : public testing::Test {
 protected:
  Prepared() {
    const std::vector<std::pair<int64_t, int64_t>> real = {{0, 12}, {0, 3}, {4, 9}, {2, 12}};
    const at::Tensor ids = at::randint(2, 250, {1, 4, 12}, at::kLong), labels = ids.clone(),
                     mask = at::zeros_like(ids);
    for (int64_t row = 0; row < 4; ++row) {
      const auto [begin, end] = real[static_cast<size_t>(row)];
      mask[0][row].slice(0, begin, end).fill_(1);
    }
    ids.masked_fill_(mask == 0, 1);
    labels.masked_fill_(mask == 0, -100);
    tensors = {{"input_ids", ids}, {"attention_mask", mask}, {"labels", labels}};
  }

  struct Result {
    test::Trace trace;
    double hardware_share = 0; ///< of model FLOPs in those of the hardware
  };
  Result run(std::vector<std::string> keys) {
    checkpoint::write_tensors(scratch / "batches.safetensors", tensors);
    keys.insert(keys.begin(), {"dtype=fp64", "dataset.type=batches", "train.train_iters=1",
                               "train.micro_batch_size=4", "model.hidden_dropout=0.2",
                               "model.attention_dropout=0.2",
                               "logger.dir=" + (scratch / fmt::format("log{}", runs++))});
    Result result{test::run(test::tiny(scratch / "batches.safetensors", keys))};
    const Json& step = result.trace.steps.at(0);
    result.hardware_share = step["mfu"].get<double>() / step["hfu"].get<double>();
    return result;
  }
  /// `gain`: in the share of the model's FLOPs.
  void expect_same(const std::vector<std::string>& keys, double gain = 0.1) {
    std::vector<std::string> removing = keys;
    removing.emplace_back("train.remove_padding=true");
    const Result padded = run(keys), removed = run(removing);
    for (const char* figure : {"loss", "grad_norm"}) {
      const double expected = padded.trace.steps.at(0)[figure].get<double>();
      EXPECT_NEAR(removed.trace.steps.at(0)[figure].get<double>(), expected, 1e-12 * expected);
    }
    test::expect_same_weights(removed.trace.weights, padded.trace.weights, 1e-10);
    EXPECT_LT(padded.hardware_share, 0.75);
    EXPECT_GT(removed.hardware_share, padded.hardware_share + gain);
  }

  std::map<std::string, at::Tensor> tensors;
  const test::Scratch scratch;
  int runs = 0;
};

TEST_F(Prepared, BatchesOfGptLoseThePaddingBehindSamples) {
  expect_same({});
  expect_same({"model.position_embedding_type=learned_absolute"});
}

TEST_F(Prepared, BatchesOfBertKeepTheirPositions) {
  tensors["next_sentence_label"] = at::tensor({0, 1, 1, 0}, at::kLong).view({1, 4});
  expect_same({"model.type=bert"});
  // RoBERTa's count the tokens that are no padding, which has id 1.
  expect_same({"model.type=bert", "model.position_offset=2"});
  tensors["position_ids"] = at::arange(48, at::kLong).remainder(12).flip(0).view({1, 4, 12});
  expect_same({"model.type=bert"});
}

TEST_F(Prepared, TargetsOnPaddingStay) {
  tensors["labels"][0][1][7] = 5;
  tensors["next_sentence_label"] = at::tensor({0, 1, 1, 0}, at::kLong).view({1, 4});
  // Up to the target, padding is computed; the output layer leaves out the rest in both runs.
  expect_same({"model.type=bert"}, 0.005);
}

/// One loss of several that has no target makes the sum smaller, not better.
TEST_F(Prepared, ASumWithoutOneOfItsLossesIsNoLoss) {
  const auto times = [](const at::Tensor& one) { return one.repeat({4, 1, 1}); };
  tensors["next_sentence_label"] = at::tensor({0, 1, 1, 0}, at::kLong).view({1, 4});
  for (auto& [name, tensor] : tensors)
    tensor = name == "next_sentence_label" ? tensor.repeat({4, 1}) : times(tensor);
  tensors["labels"][2].fill_(-100);
  const Result result =
      run({"model.type=bert", "train.train_iters=4", "logger.log_interval=1",
           "checkpoint.save=" + (scratch / "run"), "checkpoint.save_interval=1",
           "checkpoint.keep=1", "checkpoint.keep_best=1", "checkpoint.keep_best_metric=loss"});
  const std::vector<Json>& steps = result.trace.steps;
  ASSERT_EQ(steps.size(), 4u);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["loss"].is_null(), i == 2) << steps[i];
    EXPECT_EQ(steps[i].contains("lm_loss"), i != 2) << steps[i];
    EXPECT_TRUE(steps[i].contains("sop_loss") && steps[i].contains("grad_norm")) << steps[i];
    EXPECT_EQ(steps[i]["skipped"], false) << "its gradients are those of the other loss";
    EXPECT_TRUE(steps[i].contains("mfu"));
  }
  for (const auto& folder : checkpoint::checkpoints_in(scratch / "run"))
    EXPECT_NE(folder.iteration, 3) << "kept as the best";
  EXPECT_EQ(result.trace.report.last_loss, steps[3]["loss"].get<double>());
  tensors["labels"].fill_(-100);
  const test::Trace other = run({"model.type=bert", "train.train_iters=2"}).trace;
  EXPECT_FALSE(other.report.last_loss);
  EXPECT_TRUE(other.report.trained) << "on the other loss alone";
}

TEST(RemovedPaddingKey, IsRefusedWhereSamplesAreNeverPadded) {
  for (const std::string type : {"text", "indexed", "mock"}) {
    const std::string error = test::error_of([&] {
      test::tiny("unused", {"dataset.type=" + type, "train.remove_padding=true"});
    });
    EXPECT_THAT(error, AllOf(HasSubstr("train.remove_padding=true has no effect on dataset.type=" +
                                       type + ", whose samples have no padding"),
                             HasSubstr("try: train.remove_padding=false")));
  }
  EXPECT_NO_THROW(test::tiny("unused", {"dataset.type=batches", "train.remove_padding=true"}));
}

} // namespace
} // namespace pentatron::trainer
