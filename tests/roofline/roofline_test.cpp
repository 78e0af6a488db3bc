// The recorded step of a tiny model against counts by hand.
#include <gtest/gtest.h>

#include "pentatron/kernels/cross_entropy/cross_entropy.h"
#include "tests/roofline/accesses.h"
#include "tests/roofline/caching.h"
#include "tests/roofline/device.h"
#include "tests/roofline/memory.h"
#include "tests/roofline/step.h"

namespace pentatron::roofline {
namespace {

// Two samples of 32 tokens; L layers of width h, n query heads and g key-value heads of size d, ffn
// f, vocabulary V.
constexpr double kSequence = 32, T = 64, L = 2, h = 64, n = 2, g = 1, d = 32, f = 96, V = 256;
constexpr double kQkv = (n + 2 * g) * d;
constexpr double kParameters =
    L * (h * kQkv + n * d * h + 3 * f * h + 2 * h) + h + 2 * V * h; // two tables

RecordedStep tiny_with(const std::vector<std::string>& more, int number = 2) {
  std::vector<std::string> settings = {
      "model.preset=llama3_8b",     "model.num_layers=2",
      "model.hidden_size=64",       "model.num_attention_heads=2",
      "model.num_query_groups=1",   "model.ffn_hidden_size=96",
      "model.vocab_size=256",       "model.max_position_embeddings=32",
      "train.seq_length=32",        "train.micro_batch_size=2",
      "train.global_batch_size=2",  "dtype=bf16",
      "optimizer.weight_decay=0.1", "optimizer.clip_grad=1"};
  settings.insert(settings.end(), more.begin(), more.end());
  return record_step(settings, number);
}

const RecordedStep& tiny() {
  static const RecordedStep step = tiny_with({});
  return step;
}

struct Sum {
  int64_t calls = 0, kernels = 0;
  double read = 0, written = 0, flops = 0;
};

Sum sum_of(const RecordedStep& step, const std::string& op) {
  Sum sum;
  for (const Launch& one : step.launches) {
    if (one.op != op) continue;
    ++sum.calls;
    sum.kernels += one.kernels;
    sum.read += one.read;
    sum.written += one.written;
    sum.flops += one.flops;
  }
  return sum;
}

double flops_of(const RecordedStep& step, Kind kind) {
  double flops = 0;
  for (const Launch& one : step.launches)
    if (one.kind == kind) flops += one.flops;
  return flops;
}

constexpr double kVisible = 2 * kSequence * (kSequence + 1) / 2; // pairs, of two samples

TEST(Roofline, NormsMoveTheirRowsOnce) {
  const double norms = 2 * L + 1, fused = L; // with the sum of two branches
  const Sum forward = sum_of(tiny(), "norm_forward");
  EXPECT_EQ(forward.kernels, norms);
  EXPECT_EQ(forward.read, norms * (2 * T * h + 2 * h) + fused * 2 * T * h);
  EXPECT_EQ(forward.written, norms * (2 * T * h + 4 * T) + fused * 2 * T * h);
}

TEST(Roofline, ActivationsMoveTheirRowsOnce) {
  const Sum forward = sum_of(tiny(), "activation_forward"),
            backward = sum_of(tiny(), "activation_backward");
  EXPECT_EQ(forward.kernels, L);
  EXPECT_EQ(forward.read, L * 2 * T * 2 * f);
  EXPECT_EQ(forward.written, L * 2 * T * f);
  EXPECT_EQ(backward.kernels, L);
  EXPECT_EQ(backward.read, L * 2 * T * 3 * f);
  EXPECT_EQ(backward.written, L * 2 * T * 2 * f);
}

TEST(Roofline, RotationsReadTheTablesOnce) {
  const double tables = 2 * kSequence * d / 2 * 4, positions = 4 * T;
  const Sum rope = sum_of(tiny(), "rope");
  EXPECT_EQ(rope.kernels, 4 * L); // q and k, forward and backward
  EXPECT_EQ(rope.written, 2 * L * 2 * T * (n + g) * d);
  EXPECT_EQ(rope.read, rope.written + 4 * L * (tables + positions));
}

TEST(Roofline, TheLossReadsLogitsOnceWhereTheyStayInTheCache) {
  const Sum loss = sum_of(tiny(), "cross_entropy");
  EXPECT_EQ(loss.kernels, 1);
  EXPECT_EQ(loss.read, 4 * T * V + 8 * T + 4 * T); // logits, targets, scales
  EXPECT_EQ(loss.written, 2 * T * V + 2 * 4 * T);  // gradient, loss and log-sum-exp
}

TEST(Roofline, TheOptimizerMovesThirtyBytesAParameter) {
  const Sum adamw = sum_of(tiny(), "adamw"), norm = sum_of(tiny(), "sum_of_squares");
  EXPECT_EQ(tiny().parameters, kParameters);
  EXPECT_EQ(adamw.read, 16 * kParameters);
  EXPECT_EQ(adamw.written, 14 * kParameters);
  EXPECT_GE(norm.read, 4 * kParameters);
  EXPECT_LE(norm.read, 4 * kParameters + 16.0 * static_cast<double>(norm.kernels));
}

TEST(Roofline, ProductsAndAttentionAreWhatMfuCounts) {
  int64_t products = 0;
  for (const Launch& one : tiny().launches) products += one.kind == Kind::kGemm;
  EXPECT_EQ(products, 12 * L + 3);
  const double forward = 2 * T * h * (L * (kQkv + n * d + 3 * f) + V);
  EXPECT_EQ(flops_of(tiny(), Kind::kGemm), 3 * forward);
  const double pair = n * d * L;
  EXPECT_EQ(flops_of(tiny(), Kind::kAttention), 14 * kVisible * pair);
  // MFU counts half of each square, so without half of the diagonal, and no scores computed again.
  const double half = 2 * kSequence * kSequence / 2;
  EXPECT_EQ(tiny().model_flops, 3 * forward + 12 * half * pair);
  EXPECT_EQ(tiny().tokens, T);
}

TEST(Roofline, MfuCountsNoGradientThatFrozenWeightsSpare) {
  const std::string lower = "train.freeze=[\"embedding.*\",\"layers.0.*\"]";
  struct Case {
    std::vector<std::string> settings;
    double layers_with_backward;
  };
  for (const Case& one : std::vector<Case>{
           {{"train.freeze=[\"layers.*\"]"}, L}, // below them the embedding trains
           {{"train.freeze=[\"layers.*.attention.*\",\"output.weight\"]"}, L},
           {{"train.freeze=[\"embedding.*\"]", "model.untie_embeddings_and_output_weights=false"},
            L},
           {{lower}, 1},
           {{lower, "model.norm_placement=output"}, 1}, // layer 1 reads its input without a norm
           {{lower, "model.norm_placement=post"}, 1}}) {
    const RecordedStep step = tiny_with(one.settings);
    const double half = 2 * kSequence * kSequence / 2,
                 attention = half * n * d * (4 * L + 8 * one.layers_with_backward);
    EXPECT_EQ(step.model_flops, flops_of(step, Kind::kGemm) + attention) << one.settings.back();
  }
}

TEST(Roofline, ProductsAddToMainGradientsWithoutATemporary) {
  double temporary = 0; // bytes of fp32 copies and sums of the size of a weight
  for (const Launch& one : tiny().launches)
    if (one.kind == Kind::kTorch && one.read > 0 && one.written >= 4 * h * h)
      temporary += one.read + one.written;
  EXPECT_EQ(temporary, 0) << "an operator of LibTorch passes over a gradient or over logits";
}

TEST(Roofline, OffloadFreesTheMemoryOfLayersHoweverFarTheHostIsAhead) {
  const std::vector<std::string> deep = {"model.num_layers=8", "train.seq_length=512",
                                         "model.max_position_embeddings=512"};
  std::vector<std::string> away = deep;
  away.emplace_back("offload.activations=true");
  const int64_t kept = tiny_with(deep).peak_bytes, near = tiny_with(away).peak_bytes;
  set_far_behind(true);
  const int64_t far = tiny_with(away).peak_bytes;
  set_far_behind(false);
  // Of each layer but two: the inputs of five products, q, k, v, the attention's result and both
  // halves of the MLP, less the layer's input, which stays.
  const double by_token = 2 * (2 * h + kQkv + n * d + 3 * f);
  EXPECT_LT(static_cast<double>(near), static_cast<double>(kept) - 5 * 2 * 512 * by_token);
  EXPECT_EQ(far, near);
}

TEST(Roofline, LaterStepsTakeNoMemoryFromTheDriver) {
  const std::vector<std::vector<std::string>> kinds = {
      {},
      {"train.recompute=full"},
      {"model.num_layers=4", "offload.activations=true"},
      {"optimizer.optimizer=muon"},
      {"model.num_moe_experts=4"},
      {"train.global_batch_size=8", "model.hidden_dropout=0.1"}};
  for (const std::vector<std::string>& kind : kinds) {
    SCOPED_TRACE(testing::PrintToString(kind));
    std::vector<std::string> settings = {
        "model.hidden_size=512", "model.num_attention_heads=8", "model.vocab_size=32000",
        "train.seq_length=512", "model.max_position_embeddings=512"}; // blocks of all sizes
    settings.insert(settings.end(), kind.begin(), kind.end());
    const std::vector<int64_t> segments = tiny_with(settings, 4).segments;
    EXPECT_GT(segments.at(0), 0);
    for (size_t step = 2; step < 4; ++step)
      EXPECT_EQ(segments.at(step), 0) << "in step " << step + 1;
  }
}

TEST(CachingModel, SplitsAndJoinsAsLibTorchDoes) {
  constexpr size_t kMiB = size_t{1} << 20;
  CachingModel model;
  model.allocate(1, 100);            // of a segment of 2 MiB
  model.allocate(2, 2 * kMiB - 512); // of one of 20 MiB
  EXPECT_EQ(model.segments(), 2);
  model.allocate(3, kMiB);      // behind the first
  model.allocate(4, 17 * kMiB); // behind the second
  EXPECT_EQ(model.segments(), 2);
  model.allocate(5, kMiB); // 512 bytes too many
  EXPECT_EQ(model.segments(), 3);
  model.release(2);
  model.allocate(6, 3 * kMiB); // 2 MiB are free before the fourth and 1 MiB behind it
  EXPECT_EQ(model.segments(), 4);
  model.release(4);
  model.allocate(7, 20 * kMiB); // all of the second
  EXPECT_EQ(model.segments(), 4);
  for (const uintptr_t id : {1, 3, 5, 6, 7}) model.release(id);
  model.empty_cache();
  model.allocate(8, 1);
  EXPECT_EQ(model.segments(), 5);
}

/// 256 rows of 128k logits run at once, which no cache holds.
TEST(Roofline, LongRowsAreReadAgainForTheGradient) {
  constexpr int64_t kRows = 512, kColumns = 131072;
  watch_kernels();
  const auto bytes = [](int64_t size) { return reserve(static_cast<size_t>(size)); };
  const kernels::CrossEntropyArgs args{.dtype = kernels::DType::kFloat32,
                                       .out_dtype = kernels::DType::kBFloat16,
                                       .rows = kRows,
                                       .columns = kColumns,
                                       .padded_columns = kColumns,
                                       .row_stride = kColumns,
                                       .out_row_stride = kColumns,
                                       .logits = bytes(4 * kRows * kColumns),
                                       .target = static_cast<const int64_t*>(bytes(8 * kRows)),
                                       .row_scale = bytes(4 * kRows),
                                       .lse = bytes(4 * kRows),
                                       .loss = bytes(4 * kRows),
                                       .gradient = bytes(2 * kRows * kColumns)};
  begin_recording();
  kernels::cross_entropy(args, {.device = kernels::Device::kCuda});
  const std::vector<Launch> launches = end_recording();
  ASSERT_EQ(launches.size(), 1u);
  const double logits = 4.0 * kRows * kColumns;
  EXPECT_NEAR(launches[0].read / logits, 2, 1e-3);
  EXPECT_NEAR(launches[0].written / logits, 0.5, 1e-3);
}

} // namespace
} // namespace pentatron::roofline
