// Runs that go on with a processor of other abilities than the one that they began on.
#include <gmock/gmock.h>

#include "pentatron/base/json.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class OtherProcessor : public test::ProgramFolder {
 protected:
  static constexpr const char* kLeast = "PENTATRON_CPU=reference ";

  /// Four steps in list order, or those that are left; returns the messages.
  std::string train(const std::string& name, const std::string& more = "",
                    const std::string& before = "") const {
    return run("train dataset.type=mock model.vocab_size=300 model.num_layers=1 "
               "model.hidden_size=32 model.num_attention_heads=2 train.seq_length=16 "
               "train.micro_batch_size=2 train.global_batch_size=2 train.train_iters=4 "
               "train.num_threads=1 logger.peak_tflops=1 logger.tensorboard=false "
               "logger.plot=false dtype=bf16 kernels=order checkpoint.save=" +
                   name + " logger.dir=" + name + "_log " + more + " 2>&1",
               0, before);
  }
  std::string norm_of(const std::string& step) const {
    return parse_json(content_of(folder / step / "kernels.json"), step)
        .at("norm_forward bfloat16")
        .get<std::string>();
  }
  std::string weights_of(const std::string& step) const {
    return content_of(folder / step / "model_00000_of_00001.safetensors");
  }
};

TEST_F(OtherProcessor, ALesserOneRunsOtherKernelsAndSaysSo) {
  train("run", "train.exit_interval=2");
  if (norm_of("run/step_00000002") == "reference") GTEST_SKIP() << "this is the least processor";
  const std::string resumed = train("run", "checkpoint.load=run", kLeast);
  EXPECT_THAT(resumed, HasSubstr("resume is not bit-exact: activation_backward bfloat16: rank 0 "
                                 "cannot run "));
  EXPECT_THAT(resumed, HasSubstr(", so all ranks run reference; and "));
  EXPECT_EQ(norm_of("run/step_00000004"), "reference");
}

TEST_F(OtherProcessor, AGreaterOneRunsTheSameKernelsToTheBit) {
  train("whole", "", kLeast);
  train("other");
  if (norm_of("other/step_00000004") == "reference") GTEST_SKIP() << "this is the least processor";
  train("run", "train.exit_interval=2", kLeast);
  EXPECT_THAT(train("run", "checkpoint.load=run"),
              AllOf(HasSubstr("kernels, from run/step_00000002: "), Not(HasSubstr("bit-exact"))));
  EXPECT_EQ(norm_of("run/step_00000004"), "reference");
  EXPECT_EQ(weights_of("run/step_00000004"), weights_of("whole/step_00000004"));
  EXPECT_NE(weights_of("other/step_00000004"), weights_of("whole/step_00000004"))
      << "or this test could not fail";
}

} // namespace
} // namespace pentatron
