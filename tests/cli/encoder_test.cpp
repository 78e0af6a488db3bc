// Encoders on the command line: the summary of a run, and what is refused with a way out.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Encoder : public test::ProgramFolder {
 protected:
  std::string train(const std::string& settings, int status = 0) const {
    return run("train model.type=bert model.num_layers=1 model.hidden_size=16 "
               "model.num_attention_heads=2 train.train_iters=1 train.seq_length=16 "
               "train.micro_batch_size=2 train.global_batch_size=2 train.num_threads=1 "
               "logger.peak_tflops=1 kernels=order " +
                   settings + " 2>&1",
               status);
  }
};

TEST_F(Encoder, TheSummaryNamesTheLossThatTheUnigramEntropyComparesWith) {
  EXPECT_THAT(
      train(""),
      AllOf(ContainsRegex("\nloss +[0-9.]+ \\(lm loss [0-9.]+ \\| sop loss [0-9.]+\\)\n"),
            ContainsRegex("\nunigram +[0-9.]+ \\(lm loss of a model that only knows token")));
  EXPECT_THAT(train("model.binary_head=false dataset.bert_binary_head=none"),
              AllOf(ContainsRegex("\nloss +[0-9.]+\n"),
                    ContainsRegex("\nunigram +[0-9.]+ \\(loss of a model that only knows token")));
}

TEST_F(Encoder, PairsWithoutAHeadForThemAreRefused) {
  const std::string pairs = "model.binary_head=false dataset.bert_binary_head=sentence_order ";
  EXPECT_THAT(train(pairs, 2),
              AllOf(HasSubstr("dataset.bert_binary_head=sentence_order has no effect without "
                              "model.binary_head=true"),
                    HasSubstr("try: model.binary_head=true")));
  train("model.binary_head=false dataset.bert_binary_head=none checkpoint.save=one");
  EXPECT_THAT(train(pairs + "checkpoint.load=one checkpoint.finetune=true", 2),
              HasSubstr("try: dataset.bert_binary_head=none"));
}

TEST_F(Encoder, AModelThatHuggingFaceLacksIsRefusedFromTheStart) {
  const std::string model =
      "model.num_tokentypes=0 model.binary_head=false dataset.bert_binary_head=none "
      "checkpoint.save=typeless ";
  EXPECT_THAT(train(model + "checkpoint.export_hf=true", 2),
              AllOf(HasSubstr("does not support model.num_tokentypes=0"),
                    HasSubstr("try: checkpoint.export_hf=false")));
  train(model);
  EXPECT_THAT(run("convert typeless out --format hf 2>&1", 2),
              AllOf(HasSubstr("does not support model.num_tokentypes=0"),
                    HasSubstr("try: --format pentatron")));
  run("convert typeless out --format pentatron 2>&1");
}

TEST_F(Encoder, IsNoGgufModel) {
  EXPECT_THAT(run("convert '" PENTATRON_TEST_DATA
                  "/hf_tiny/bert_masked_lm' out.gguf --format gguf 2>&1",
                  2),
              AllOf(HasSubstr("model_type=bert cannot be written as GGUF; supported are llama"),
                    Not(HasSubstr("tokenizer")), Not(HasSubstr("try: "))));
}

} // namespace
} // namespace pentatron
