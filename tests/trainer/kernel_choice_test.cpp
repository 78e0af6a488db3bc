// The kernels of a run: measured once, the same on all ranks, kept with the run and its
// checkpoints.
#include "pentatron/trainer/kernel_choice.h"
#include "pentatron/trainer/run_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>

#include "pentatron/base/log.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/sharded/parity.h"
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
using ::testing::IsEmpty;
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
  /// The same of the classes of a run in fp32 with AdamW.
  static Selection first_entries_of_run() {
    using kernels::Op;
    const Selection all = first_entries();
    Selection selection;
    for (const kernels::OpClass c : kernels::all_op_classes())
      if (kernels::element_type(c) == kernels::DType::kFloat32 && c.op != Op::kSgd &&
          c.op != Op::kLion)
        selection.set(c, all.find(c));
    return selection;
  }
  std::string text_of(const std::string& file) const { return content_of(scratch.path / file); }
  Selection selection_of(const std::string& file) const {
    return Selection::parse(text_of(file), file);
  }
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
  EXPECT_EQ(text_of("run/step_00000004/kernels.json"), kept);
  // Beside other programs some classes stay open in the cache; what has one entry never does.
  const Selection all = Selection::parse(kept, "the run"),
                  measured = Selection::parse(content_of(kernel_cache_file()), "the cache"),
                  first = first_entries(), needed = first_entries_of_run();
  EXPECT_THAT(measured.choices(), Not(IsEmpty()));
  for (const kernels::OpClass c : kernels::all_op_classes()) {
    const std::string name = kernels::class_name(c), choice = measured.find(c);
    if (!choice.empty()) {
      EXPECT_EQ(all.find(c), choice) << name;
    } else if (!needed.find(c).empty()) {
      EXPECT_EQ(all.find(c), first.find(c)) << name << " is not measured";
    } else {
      EXPECT_EQ(all.find(c), "") << name;
    }
  }
}

TEST_F(KernelChoices, OrderMeasuresNothingAndNamesWhatRuns) {
  test::run(config("run", {"kernels=order"}));
  EXPECT_EQ(text_of("run_log/kernels.json"), first_entries_of_run().text());
  EXPECT_EQ(text_of("run/step_00000004/kernels.json"), first_entries_of_run().text());
  EXPECT_FALSE(fs::exists(kernel_cache_file()));
}

/// A run, and beginnings of the names of classes that it meets.
struct Meeting {
  std::vector<std::string> settings, met;
};

std::vector<Meeting> all_meetings() {
  const std::string muon = "optimizer.optimizer=muon",
                    adaptive = "optimizer.optimizer=adaptive_muon",
                    muon_bf16 = "optimizer.muon_bf16=true",
                    scale = "mixed_precision.initial_loss_scale=1024"; // or updates are skipped
  std::vector<Meeting> all = {
      {{"optimizer.optimizer=adam"}, {"adamw float32", "gemm float32 "}},
      {{"optimizer.optimizer=adam", "dtype=fp64"}, {"adamw float64"}},
      {{"optimizer.optimizer=sgd"}, {"sgd float32"}},
      {{"optimizer.optimizer=lion"}, {"lion float32"}},
      {{"optimizer.optimizer=adafactor", "dtype=bf16"}, {"gemm bfloat16 "}},
      {{muon}, {"adamw float32"}},
      {{muon, "dtype=bf16"}, {"adamw float32", "gemm float32 ", "gemm bfloat16 "}},
      {{muon, muon_bf16}, {"adamw float32", "gemm bfloat16 "}},
      {{muon, muon_bf16, "dtype=fp64"}, {"adamw float64", "gemm bfloat16 "}},
      {{adaptive}, {"adamw float32"}},
      {{adaptive, muon_bf16, "dtype=fp16", scale}, {"adamw float32", "gemm bfloat16 "}},
      {{"dtype=bf16", "model.num_moe_experts=4", "model.hidden_dropout=0.1"}, {"dropout bfloat16"}},
  };
  const std::string section = "mixed_precision.";
  for (const std::vector<std::string>& recipe : std::vector<std::vector<std::string>>{
           {section + "fp8=hybrid", section + "fp8_recipe=tensorwise"},
           {section + "fp8=hybrid", section + "fp8_recipe=delayed"},
           {section + "fp8=e4m3", section + "fp8_recipe=blockwise"},
           {section + "fp8=e4m3", section + "fp8_recipe=mxfp8"},
           {section + "fp4=e2m1"}}) {
    for (const auto& [dtype, met] : std::vector<std::pair<std::string, std::vector<std::string>>>{
             {"fp32", {"quantize float32 ", "gemm bfloat16-float32 "}},
             {"fp16", {"quantize float16 ", "gemm bfloat16-float32 "}},
             {"fp64", {"quantize float64 "}}}) {
      Meeting meeting{recipe, met};
      meeting.settings.push_back("dtype=" + dtype);
      if (dtype == "fp16") meeting.settings.push_back(scale);
      all.push_back(std::move(meeting));
    }
  }
  return all;
}

TEST_F(KernelChoices, NameEveryClassThatARunMeets) {
  int number = 0;
  for (const Meeting& meeting : all_meetings()) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(meeting.settings, " ")));
    const std::string name = fmt::format("run{}", ++number);
    std::vector<std::string> settings = meeting.settings;
    settings.insert(settings.end(), {"kernels=order", "train.train_iters=2"});
    const Config run = config(name, settings);
    std::vector<kernels::OpClass> asked;
    {
      const kernels::AskedClasses classes;
      test::run(run);
      asked = classes.all();
    }
    const Selection kept = selection_of(name + "_log/kernels.json");
    std::set<std::string> names;
    for (const kernels::OpClass c : asked) {
      names.insert(kernels::class_name(c));
      // One entry takes fp64 products, so they have no class to choose for.
      if (c.op == kernels::Op::kGemm && kernels::element_type(c) == kernels::DType::kFloat64)
        continue;
      EXPECT_NE(kept.find(c), "") << kernels::class_name(c);
      EXPECT_GE(kernels::chosen_position(c), 0) << kernels::class_name(c) << " is left to chance";
    }
    for (const std::string& begin : meeting.met)
      EXPECT_TRUE(std::ranges::any_of(
          names, [&](const std::string& one) { return one.starts_with(begin); }))
          << "no " << begin << ", or this test could not fail";
  }
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
  const Selection first = first_entries();
  const auto norm = [](kernels::DType dtype) {
    return kernels::op_class(kernels::Op::kNormForward, dtype);
  };
  for (const std::string kind : {"auto", "order"}) {
    const std::string kernels = "kernels=" + kind;
    test::run(config(kind, {kernels, "train.exit_interval=2"}));
    Selection elsewhere = selection_of(kind + "_log/kernels.json");
    // The run is in fp32, so the other class does not matter.
    const std::vector<kernels::OpClass> lacking = {norm(kernels::DType::kFloat32),
                                                   norm(kernels::DType::kBFloat16)};
    for (const kernels::OpClass c : lacking) elsewhere.set(c, "avx4096");
    replace_stored(scratch.path / kind / "step_00000002", elsewhere.text());
    const std::string told =
        messages(config(kind, {kernels, "checkpoint.load=" + (scratch / kind)}));
    EXPECT_THAT(told, HasSubstr("resume is not bit-exact: norm_forward float32: rank 0 cannot run "
                                "avx4096, so all ranks run " +
                                first.find(lacking[0]) + "\n"))
        << kind;
    for (const kernels::OpClass c : lacking) elsewhere.set(c, first.find(c));
    EXPECT_EQ(text_of(kind + "/step_00000004/kernels.json"), elsewhere.text()) << kind;
  }
}

TEST_F(KernelChoices, OfListOrderStayWithTheRun) {
  const std::string order = "kernels=order", bf16 = "dtype=bf16";
  const test::Trace whole = test::run(config("whole", {order, bf16}));
  test::run(config("parts", {order, bf16, "train.exit_interval=2"}));
  test::Trace resumed;
  const std::string told =
      messages(config("parts", {order, bf16, "checkpoint.load=" + (scratch / "parts")}), &resumed);
  EXPECT_THAT(told, AllOf(HasSubstr("resumed from "), Not(HasSubstr("bit-exact")),
                          Not(HasSubstr("kernels,"))));
  EXPECT_EQ(text_of("parts/step_00000004/kernels.json"), text_of("whole_log/kernels.json"));
  for (const auto& [name, weight] : whole.weights)
    EXPECT_TRUE(at::equal(resumed.weights.at(name), weight)) << name;
}

/// As after a run with kernels=order on a machine whose lists begin with other entries.
TEST_F(KernelChoices, OfAnotherListOrderRunWhereTheyCan) {
  if (!has_fast_products()) GTEST_SKIP() << "the reference is the first entry here";
  for (const std::string kind : {"auto", "order"}) {
    kernels::clear_selection();
    test::run(config(kind, {"kernels=order", "train.exit_interval=2"}));
    EXPECT_TRUE(has_fast_products());
    Selection elsewhere = selection_of(kind + "_log/kernels.json");
    for (const kernels::OpClass c : kernels::all_op_classes())
      if (c.op == kernels::Op::kGemm && !elsewhere.find(c).empty()) elsewhere.set(c, "reference");
    const fs::path saved = scratch.path / kind / "step_00000002";
    replace_stored(saved, elsewhere.text());
    const std::string told =
        messages(config(kind, {"kernels=" + kind, "checkpoint.load=" + (scratch / kind)}));
    EXPECT_THAT(
        told, AllOf(HasSubstr("kernels, from " + saved.string() + ": gemm float32 nn by reference"),
                    Not(HasSubstr("bit-exact"))));
    EXPECT_FALSE(has_fast_products()) << "the stored entries run";
    EXPECT_EQ(text_of(kind + "/step_00000004/kernels.json"), elsewhere.text());
  }
}

/// Files that older versions wrote name no list order.
TEST_F(KernelChoices, OfAFileWithoutAnyAreListOrder) {
  pretend_measured(products_by("reference"));
  for (const std::string kind : {"auto", "order"}) {
    test::run(config(kind, {"kernels=order", "train.exit_interval=2"}));
    replace_stored(scratch.path / kind / "step_00000002", "{}\n");
    const std::string told =
        messages(config(kind, {"kernels=" + kind, "checkpoint.load=" + (scratch / kind)}));
    EXPECT_THAT(told, AllOf(HasSubstr("resumed from "), Not(HasSubstr("bit-exact")),
                            Not(HasSubstr("kernels,"))));
    EXPECT_EQ(text_of(kind + "/step_00000004/kernels.json"), first_entries_of_run().text());
  }
}

TEST_F(KernelChoices, OfADamagedFileAreThoseOfTheMachine) {
  pretend_measured(first_entries());
  const std::string loads = "checkpoint.load=" + (scratch / "run");
  const fs::path stored = scratch.path / "run/step_00000002/kernels.json";
  const std::vector<std::function<void()>> damages = {
      [&] { fs::resize_file(stored, fs::file_size(stored) - 1); }, [&] { fs::remove(stored); },
      [&] { std::fstream(stored, std::ios::in | std::ios::out) << '['; },
      [&] { replace_stored(stored.parent_path(), "{\"norm_forward"); }};
  for (const std::function<void()>& damage : damages) {
    test::run(config("run", {"train.exit_interval=2"}));
    const std::string kept = text_of("run_log/kernels.json");
    damage();
    const std::string told = messages(config("run", {loads}));
    EXPECT_THAT(told, AllOf(HasSubstr("resume is not bit-exact: "), HasSubstr(stored.string()),
                            HasSubstr("resumed from " + stored.parent_path().string()),
                            Not(HasSubstr("checkpoint repair"))));
    EXPECT_EQ(text_of("run_log/kernels.json"), kept) << "from the cache";
    fs::remove_all(scratch.path / "run");
    fs::remove_all(scratch.path / "run_log");
  }
  test::run(config("run", {"train.exit_interval=2"}));
  fs::remove(stored);
  EXPECT_THAT(messages(config("second", {loads, "checkpoint.finetune=true"})),
              Not(HasSubstr("bit-exact")));
}

TEST_F(KernelChoices, OfAMachineThatLostThemAreThoseOfTheMachine) {
  test::run(config("run", {"train.exit_interval=2", "checkpoint.node_local=true"}));
  const fs::path stored = scratch.path / "run/step_00000002/kernels.json";
  for (const char* const text : {"[", ""}) {
    text[0] == '\0' ? fs::remove(stored) : (std::ofstream(stored) << text).good();
    const std::string name = text[0] == '\0' ? "second" : "first";
    EXPECT_THAT(messages(config(
                    name, {"checkpoint.node_local=true", "checkpoint.load=" + (scratch / "run")})),
                AllOf(HasSubstr("resume is not bit-exact: "), HasSubstr(stored.string()),
                      HasSubstr("resumed from ")));
  }
}

TEST_F(KernelChoices, OfAFileWhoseCopiesAreLostDoNotStopTheRun) {
  test::run(config("run", {"train.exit_interval=2", "checkpoint.parity=1"}));
  const fs::path folder = scratch.path / "run/step_00000002";
  fs::remove(folder / "kernels.json");
  fs::remove(folder / "spare_00/kernels.json");
  EXPECT_THAT(messages(config("other", {"checkpoint.load=" + (scratch / "run")})),
              AllOf(HasSubstr("resume is not bit-exact"), Not(HasSubstr("checkpoint repair"))));
  fs::remove(folder / "spare_00/data_files.json");
  EXPECT_EQ(checkpoint::repair_checkpoint(folder).lost.size(), 1u);
  EXPECT_TRUE(fs::exists(folder / "spare_00/data_files.json"));
}

TEST_F(KernelChoices, OfADamagedFileWithACopyCanBeRepaired) {
  test::run(config("run", {"train.exit_interval=2", "checkpoint.parity=1"}));
  const fs::path folder = scratch.path / "run/step_00000002";
  fs::remove(folder / "kernels.json");
  EXPECT_THAT(messages(config("other", {"checkpoint.load=" + (scratch / "run")})),
              HasSubstr("try: pentatron checkpoint repair " + folder.string()));
  EXPECT_TRUE(checkpoint::repair_checkpoint(folder).lost.empty());
  EXPECT_THAT(messages(config("third", {"checkpoint.load=" + (scratch / "run")})),
              Not(HasSubstr("bit-exact")));
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

TEST_F(KernelChoices, OfAMeasuredRunThatListOrderChangesAreTold) {
  if (!has_fast_products()) GTEST_SKIP() << "the reference is the first entry here";
  const auto told = [&](const std::string& name, const Selection& measured) {
    pretend_measured(measured);
    test::run(config(name, {"train.exit_interval=2"}));
    return messages(config(name, {"kernels=order", "checkpoint.load=" + (scratch / name)}));
  };
  EXPECT_THAT(told("other", products_by("reference")),
              AllOf(HasSubstr("resume is not bit-exact: kernels=order, but " +
                              (scratch / "other/step_00000002") +
                              " was saved with kernels=auto, which chose gemm float32 nn by "
                              "reference, gemm float32 nt by reference"),
                    Not(HasSubstr("kernels, "))));
  EXPECT_THAT(told("same", first_entries()), Not(HasSubstr("bit-exact")));
  for (const char* name : {"other", "same"})
    EXPECT_EQ(text_of(std::string(name) + "/step_00000004/kernels.json"),
              first_entries_of_run().text());
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
