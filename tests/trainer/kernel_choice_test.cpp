// The kernels of a run: measured once, the same on all ranks, kept with the run and its
// checkpoints.
#include "pentatron/trainer/kernel_choice.h"
#include "pentatron/trainer/run_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "pentatron/base/log.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/kernels/gemm/gemm.h"
#include "pentatron/kernels/selection/cache.h"
#include "pentatron/kernels/selection/probe.h"
#include "pentatron/layers/core_attention.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using kernels::Selection;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class KernelChoices : public testing::Test {
 protected:
  KernelChoices() {
    at::set_num_threads(1); // as in the runs; part of the cache's name
    if (const char* old = std::getenv("XDG_CACHE_HOME")) cache_before_ = old;
    setenv("XDG_CACHE_HOME", (scratch / "cache").c_str(), 1);
  }
  ~KernelChoices() override {
    kernels::clear_selection();
    cache_before_ ? setenv("XDG_CACHE_HOME", cache_before_->c_str(), 1)
                  : unsetenv("XDG_CACHE_HOME");
  }

  Config config(const std::string& name, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"kernels=auto", "logger.dir=" + (scratch / (name + "_log")),
                               "checkpoint.save=" + (scratch / name), "train.train_iters=4"});
    return test::tiny(test::write_documents(scratch / "data.jsonl", 100), more);
  }
  /// What the machine measures, as the next runs see it.
  void pretend_measured(const Selection& selection) const {
    fs::create_directories(kernel_cache_file().parent_path());
    std::ofstream(kernel_cache_file()) << selection.text();
  }
  /// Every class by its first entry, but products by the one named.
  static Selection products_by(const std::string& entry) {
    Selection selection = first_entries();
    for (const kernels::OpClass c : kernels::all_op_classes())
      if (c.op == kernels::Op::kGemm) selection.set(c, entry);
    return selection;
  }
  /// What kernels=order takes. What measures fastest depends on how the program was compiled: under
  /// a sanitizer it is the reference.
  static Selection first_entries() {
    Selection selection;
    for (const kernels::OpClass c : kernels::all_op_classes()) {
      const kernels::Probe probe = kernels::describe_probe(c);
      if (probe.first() >= 0)
        selection.set(c, probe.entries[static_cast<size_t>(probe.first())].name);
    }
    return selection;
  }
  std::string text_of(const std::string& file) const { return content_of(scratch.path / file); }
  /// The run's messages.
  std::string messages(const Config& config, test::Trace* trace = nullptr) const {
    testing::internal::CaptureStderr();
    test::Trace made = test::run(config);
    if (trace != nullptr) *trace = std::move(made);
    return testing::internal::GetCapturedStderr();
  }
  static bool has_fast_products() { return kernels::gemm_supported({.m = 1, .n = 1, .k = 1}); }

  test::Scratch scratch;

 private:
  std::optional<std::string> cache_before_;
};

TEST_F(KernelChoices, AreMeasuredOnceAndKeptWithTheRun) {
  test::run(config("run"));
  const std::string kept = text_of("run_log/kernels.json");
  // Beside other programs some classes stay open; what has one entry never does.
  EXPECT_THAT(kept, HasSubstr("\"norm_forward float64\": "));
  EXPECT_EQ(text_of("run/step_00000004/kernels.json"), kept);
  EXPECT_EQ(content_of(kernel_cache_file()), kept);
}

TEST_F(KernelChoices, OrderMeasuresNothing) {
  test::run(config("run", {"kernels=order"}));
  EXPECT_EQ(text_of("run_log/kernels.json"), "{}\n");
  EXPECT_FALSE(fs::exists(kernel_cache_file()));
}

TEST_F(KernelChoices, OfAttentionOnGpusAreThoseOfTheConfiguration) {
  for (const char* value : {"false", "true"}) {
    test::run(config(value, {std::string("deterministic=") + value}));
    EXPECT_EQ(layers::deterministic_attention(), value == std::string_view("true"));
  }
}

TEST_F(KernelChoices, ThatDifferFromTheListAreTold) {
  if (!has_fast_products()) GTEST_SKIP() << "the reference is the first entry here";
  pretend_measured(products_by("reference"));
  EXPECT_THAT(messages(config("run")),
              AllOf(HasSubstr("kernels, measured on this machine before: "),
                    HasSubstr("gemm float32 nn by reference, gemm float32 nt by reference")));
  EXPECT_THAT(messages(config("other", {"kernels=order"})), Not(HasSubstr("kernels,")));
}

/// The stored choice decides, to the bit, although the machine would now measure another.
TEST_F(KernelChoices, OfACheckpointWinOverOthersMeasured) {
  if (!has_fast_products()) GTEST_SKIP() << "the reference is the first entry here";
  // Products of a type whose fast kernels round otherwise on every processor.
  const std::string bf16 = "dtype=bf16";
  pretend_measured(products_by("reference"));
  const test::Trace whole = test::run(config("whole", {bf16}));
  test::run(config("parts", {bf16, "train.exit_interval=2"}));
  const Selection fast = first_entries();
  pretend_measured(fast);
  const test::Trace other = test::run(config("other", {bf16}));
  const test::Trace resumed =
      test::run(config("parts", {bf16, "checkpoint.load=" + (scratch / "parts")}));
  EXPECT_EQ(text_of("parts_log/kernels.json"), text_of("whole_log/kernels.json"));
  EXPECT_EQ(text_of("other_log/kernels.json"), fast.text());
  bool differs = false;
  for (const auto& [name, weight] : whole.weights) {
    EXPECT_TRUE(at::equal(resumed.weights.at(name), weight)) << name;
    differs |= !at::equal(other.weights.at(name), weight);
  }
  EXPECT_TRUE(differs) << "or this test could not fail";
}

TEST_F(KernelChoices, OfACheckpointDoNotBindAnotherRunFromItsWeights) {
  pretend_measured(products_by("reference"));
  test::run(config("first"));
  const Selection fast = first_entries();
  pretend_measured(fast);
  test::run(
      config("second", {"checkpoint.load=" + (scratch / "first"), "checkpoint.finetune=true"}));
  EXPECT_EQ(text_of("second_log/kernels.json"), fast.text());
}

/// Writes another kernels.json into a checkpoint, which knows of it.
void replace_stored(const fs::path& folder, const std::string& text) {
  checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  manifest.attachments[kKernelsFile] =
      checkpoint::write_attachments(folder, {{kKernelsFile, text}}).at(kKernelsFile);
  std::ofstream(folder / "manifest.json") << to_text(manifest);
}

TEST_F(KernelChoices, AreThoseOfTheCheckpointThatIsLoaded) {
  test::run(config("run", {"checkpoint.save_interval=2"}));
  const std::string good = text_of("run/step_00000002/kernels.json");
  const std::string other = products_by("reference").text();
  ASSERT_NE(good, other);
  const fs::path newest = scratch.path / "run/step_00000004";
  replace_stored(newest, other);
  { // a bit of the weights, which is found only when they are read
    std::fstream shard(newest / "model_00000_of_00001.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header = 0;
    shard.read(reinterpret_cast<char*>(&header), sizeof header);
    const auto first = static_cast<std::streamoff>(sizeof header + header);
    shard.seekg(first);
    const char flipped = static_cast<char>(shard.get() ^ 1);
    shard.seekp(first);
    shard.put(flipped);
  }
  const std::string told = messages(config("run", {"checkpoint.load=" + (scratch / "run")}));
  EXPECT_THAT(told, HasSubstr("using " + (scratch / "run/step_00000002")));
  EXPECT_EQ(text_of("run_log/kernels.json"), good);
}

TEST_F(KernelChoices, ThatThisMachineLacksAreToldAndReplaced) {
  test::run(config("run", {"train.exit_interval=2"}));
  Selection elsewhere = Selection::parse(text_of("run_log/kernels.json"), "test");
  const kernels::OpClass norm =
      kernels::op_class(kernels::Op::kNormForward, kernels::DType::kFloat32);
  const kernels::Probe probe = kernels::describe_probe(norm);
  const std::string first(probe.entries[static_cast<size_t>(probe.first())].name);
  elsewhere.set(norm, "avx4096");
  replace_stored(scratch.path / "run/step_00000002", elsewhere.text());
  const std::string told = messages(config("run", {"checkpoint.load=" + (scratch / "run")}));
  EXPECT_THAT(told, HasSubstr("resume is not bit-exact: norm_forward float32: rank 0 cannot run "
                              "avx4096, so all ranks run " +
                              first));
  elsewhere.set(norm, first);
  EXPECT_EQ(text_of("run/step_00000004/kernels.json"), elsewhere.text());
}

TEST_F(KernelChoices, OfADamagedFileAreThoseOfTheMachine) {
  pretend_measured(first_entries());
  test::run(config("run", {"train.exit_interval=2"}));
  const std::string kept = text_of("run_log/kernels.json");
  replace_stored(scratch.path / "run/step_00000002", "{\"norm_forward");
  const std::string told = messages(config("run", {"checkpoint.load=" + (scratch / "run")}));
  EXPECT_THAT(told, HasSubstr("resume is not bit-exact: "));
  EXPECT_THAT(told, HasSubstr("step_00000002/kernels.json"));
  EXPECT_EQ(text_of("run_log/kernels.json"), kept) << "from the cache";
}

TEST_F(KernelChoices, OfConvertedWeightsAreNone) {
  test::run(config("run", {"train.exit_interval=2"}));
  const fs::path weights = scratch.path / "weights";
  checkpoint::convert_model(*checkpoint::open_model(scratch / "run"), weights,
                            {.format = checkpoint::ModelFormat::kPentatron});
  const StoredKernels stored = stored_kernels(weights / "step_00000000");
  EXPECT_EQ(stored.text, std::nullopt);
  EXPECT_EQ(stored.problem, "");
}

TEST_F(KernelChoices, OfAMeasuredRunAndListOrderAreTold) {
  test::run(config("run", {"train.exit_interval=2"}));
  const std::string told =
      messages(config("run", {"kernels=order", "checkpoint.load=" + (scratch / "run")}));
  EXPECT_THAT(told, HasSubstr("resume is not bit-exact: kernels=order, but "));
}

TEST_F(KernelChoices, AreTheSameOnAllRanks) {
  const Config c = config("run");
  std::vector<std::string> texts(3);
  test::run_ranks(3, [&](const comm::Group& world) {
    texts[static_cast<size_t>(world.rank())] =
        choose_kernels(c, at::Device(at::kCPU), std::nullopt, world);
  });
  EXPECT_THAT(texts[0], HasSubstr("norm_forward float64"));
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

} // namespace
} // namespace pentatron::trainer
