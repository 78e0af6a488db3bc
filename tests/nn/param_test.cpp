#include "pentatron/nn/param.h"

#include "pentatron/base/error.h"
#include "pentatron/base/philox.h"
#include "pentatron/nn/module.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/param_store.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pentatron::nn {
namespace {

using test::error_of;
using test::expect_close;
using test::randn;

const std::map<std::string, Placement> kByRows = {{"tp", Placement::shard(0)}},
                                       kColumns = {{"tp", Placement::shard(1)}};

std::vector<ShardSpec> specs() {
  return {{.name = "replicated", .shape = {5, 3}},
          {.name = "vector", .shape = {12}, .placements = kByRows},
          {.name = "rows", .shape = {12, 5}, .placements = kByRows},
          {.name = "columns", .shape = {5, 12}, .placements = kColumns},
          {.name = "three", .shape = {4, 3, 2}, .placements = kByRows},
          {.name = "qkv",
           .shape = {4 * 6 + 4 * 3 + 4 * 3, 7},
           .parts = {{"q", 4, 6}, {"k", 4, 3}, {"v", 4, 3}},
           .placements = kByRows},
          {.name = "vocab", .shape = {70, 3}, .shard_multiple = 64, .placements = kByRows}};
}

Coordinates tp(int rank, int size) {
  return {{"tp", {rank, size}}};
}

void give_storage(Param& param) {
  param.set_value(at::full(param.shape(), 77.0, at::TensorOptions(param.dtype())));
  param.set_main_grad(at::zeros(param.shape(), acc_dtype(param.dtype())));
}

/// Puts the ranks' values together.
at::Tensor gathered(const ShardSpec& spec, int ranks, const std::function<void(Param&)>& fill) {
  at::Tensor global = at::full(spec.shape, -1.0, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) {
    Param param(spec, Init::normal(0.5), at::kDouble, tp(rank, ranks));
    give_storage(param);
    fill(param);
    store_global(param, param.value(), global);
  }
  return global;
}

TEST(ParamGradient, IsZeroWhateverItsMemoryHoldsOnceCleared) {
  Param param({.name = "w", .shape = {2, 3}}, Init::constant(1), at::kDouble, {});
  const at::Tensor memory = at::full({2, 3}, std::nan(""), at::kDouble);
  param.set_main_grad(memory);
  param.clear_main_grad();
  param.add_use();
  param.accumulate(at::ones({2, 3}, at::kDouble)); // reads the zeros
  EXPECT_TRUE(at::equal(memory, at::ones({2, 3}, at::kDouble)));

  param.clear_main_grad();
  const Param::Sum first = param.sum_to_write(), second = param.sum_to_write();
  EXPECT_TRUE(first.empty); // and was not touched
  EXPECT_FALSE(second.empty);
  EXPECT_TRUE(at::equal(memory, at::ones({2, 3}, at::kDouble)));

  param.clear_main_grad();
  EXPECT_TRUE(at::equal(param.main_grad(), at::zeros({2, 3}, at::kDouble)));
  EXPECT_FALSE(param.sum_to_write().empty);
}

TEST(ParamGradient, IsLentToWhoWritesIt) {
  Param param({.name = "w", .shape = {2}}, Init::constant(1), at::kFloat, {});
  param.need_main_grad = [](Param& p) {
    p.set_main_grad(at::full({2}, std::nanf("")));
    p.clear_main_grad();
  };
  EXPECT_TRUE(param.sum_to_write().empty);
  param.set_main_grad({});
  EXPECT_TRUE(at::equal(param.main_grad(), at::zeros({2})));
}

TEST(ParamInit, EveryElementIsTheNumberOfItsGlobalAddressInEveryLayout) {
  for (const ShardSpec& spec : specs()) {
    at::Tensor expected = at::empty(spec.shape, at::kDouble);
    const Stream stream(3, "init/" + spec.name);
    for (int64_t i = 0; i < expected.numel(); ++i)
      expected.mutable_data_ptr<double>()[i] = 0.5 * stream.normal(static_cast<uint64_t>(i));
    for (const int ranks : {1, 2, 4}) {
      const at::Tensor global = gathered(spec, ranks, [](Param& param) { param.initialize(3); });
      EXPECT_TRUE(test::same_bits(global, expected)) << spec.name << " on " << ranks;
    }
  }
}

TEST(ParamInit, PaddingIsZeroWhateverTheRule) {
  const ShardSpec spec = specs().back();
  for (const Init init : {Init::normal(1), Init::constant(2)}) {
    for (int rank = 0; rank < 4; ++rank) {
      Param param(spec, init, at::kFloat, tp(rank, 4));
      give_storage(param);
      param.initialize(1);
      const int64_t real = std::clamp<int64_t>(70 - 64 * rank, 0, 64);
      EXPECT_EQ(param.shape()[0], 64);
      EXPECT_TRUE(param.value().narrow(0, 0, real).ne(0).all().item<bool>());
      EXPECT_TRUE(param.value().narrow(0, real, 64 - real).eq(0).all().item<bool>());
    }
  }
}

TEST(ParamInit, NamesAndSeedsDrawDifferentNumbersAndRoundingIsTheLastStep) {
  const auto value = [](const std::string& name, uint64_t seed, at::ScalarType dtype) {
    Param param({.name = name, .shape = {40, 50}}, Init::normal(0.02), dtype, {});
    give_storage(param);
    param.initialize(seed);
    return param.value();
  };
  const at::Tensor base = value("a", 1, at::kDouble);
  EXPECT_NEAR(base.std().item<double>(), 0.02, 0.02 * 0.08); // 5 standard deviations
  EXPECT_NEAR(base.mean().item<double>(), 0, 0.02 * 0.11);
  EXPECT_FALSE(base.eq(value("b", 1, at::kDouble)).any().item<bool>());
  EXPECT_FALSE(base.eq(value("a", 2, at::kDouble)).any().item<bool>());
  EXPECT_TRUE(test::same_bits(value("a", 1, at::kBFloat16), base.to(at::kBFloat16)));
  EXPECT_TRUE(test::same_bits(value("a", 1, at::kFloat), base.to(at::kFloat)));
}

TEST(ParamGlobal, WhatIsLoadedIsStoredAgainInEveryLayout) {
  for (const ShardSpec& spec : specs()) {
    const at::Tensor global = randn(spec.shape, 5);
    for (const int ranks : {1, 2, 4}) {
      const at::Tensor back =
          gathered(spec, ranks, [&](Param& param) { load_global(param, global); });
      EXPECT_TRUE(test::same_bits(back, global)) << spec.name << " on " << ranks;
    }
  }
}

TEST(ParamGlobal, LoadingClearsPadding) {
  Param param(specs().back(), Init::normal(1), at::kDouble, tp(1, 2));
  give_storage(param);
  load_global(param, randn({70, 3}, 1));
  EXPECT_TRUE(param.value().narrow(0, 6, 58).eq(0).all().item<bool>());
}

TEST(ParamGlobal, AWrongShapeIsAnErrorThatNamesBoth) {
  Param param({.name = "w", .shape = {3, 4}}, Init::normal(1), at::kDouble, {});
  give_storage(param);
  EXPECT_THROW(load_global(param, at::zeros({4, 3}, at::kDouble)), CheckpointError);
  const std::string message = error_of([&] { load_global(param, at::zeros({12}, at::kDouble)); });
  EXPECT_NE(message.find("w has shape 12"), std::string::npos) << message;
  EXPECT_NE(message.find("3x4"), std::string::npos) << message;
}

TEST(ParamGradient, AddsUpInTheAccumulateType) {
  EXPECT_EQ(acc_dtype(at::kDouble), at::kDouble);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    EXPECT_EQ(acc_dtype(dtype), at::kFloat);
  Param param({.name = "w", .shape = {2}}, Init::constant(0), at::kBFloat16, {});
  give_storage(param);
  for (int i = 0; i < 300; ++i) { // in bf16 the sum would stop at 256
    param.add_use();
    param.accumulate(at::ones({2}, at::kBFloat16));
  }
  expect_close(param.main_grad(), at::full({2}, 300.0, at::kFloat));
}

TEST(ParamGradient, IsReadyWhenEveryAnnouncedUseIsPaid) {
  Param param({.name = "tied", .shape = {2}}, Init::constant(0), at::kDouble, {});
  give_storage(param);
  int ready = 0;
  param.on_ready = [&](Param&) { ++ready; };
  param.add_use();
  param.add_use();
  EXPECT_EQ(param.outstanding_uses(), 2);
  param.accumulate(at::ones({2}, at::kDouble));
  EXPECT_EQ(ready, 0);
  param.accumulated();
  EXPECT_EQ(ready, 1);
  EXPECT_EQ(param.outstanding_uses(), 0);
}

TEST(ParamGradient, MoreGradientsThanUsesIsAnError) {
  Param param({.name = "layers.3.w", .shape = {2}}, Init::constant(0), at::kDouble, {});
  give_storage(param);
  const std::string message = error_of([&] { param.accumulate(at::ones({2}, at::kDouble)); });
  EXPECT_NE(message.find("layers.3.w"), std::string::npos) << message;
}

TEST(ParamGradient, AutogradNeverSeesAParameter) {
  test::Params params;
  Param& weight = params.add("w", randn({3, 3}, 1));
  test::Pass pass(4);
  const at::Tensor y = linear(randn({4, 3}, 2).requires_grad_(true), weight, nullptr, pass.ctx);
  y.backward(at::ones({4, 3}, at::kDouble));
  EXPECT_FALSE(weight.value().requires_grad());
  EXPECT_FALSE(weight.value().grad().defined());
  EXPECT_GT(weight.main_grad().abs().sum().item<double>(), 0);
}

TEST(ParamList, FindsByNameAndNamesWhatIsMissing) {
  ParamList list;
  const Scope root(list, at::kDouble, {});
  Param& w = (root / "layers.0" / "mlp").param("w", {.name = {}, .shape = {2, 2}}, {});
  Param& b = (root / "head").vector("b", 3, {});
  EXPECT_EQ(w.name(), "layers.0.mlp.w");
  EXPECT_EQ(&list.find("head.b"), &b);
  EXPECT_EQ(list.size(), 2u);
  EXPECT_NE(error_of([&] { list.find("head.c"); }).find("head.c"), std::string::npos);
}

class ResidentStoreTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(ResidentStoreTest, ParametersAreAlignedPartsOfTwoFlatBuffers) {
  ParamList list;
  const Scope root(list, GetParam(), {});
  for (const int64_t size : {1, 63, 64, 65, 200}) {
    root.vector("p" + std::to_string(size), size, Init::constant(3));
  }
  ResidentStore store(list, at::kCPU);
  EXPECT_EQ(store.values().scalar_type(), GetParam());
  EXPECT_EQ(store.gradients().scalar_type(), acc_dtype(GetParam()));
  EXPECT_EQ(store.values().numel(), 64 + 64 + 64 + 128 + 256);
  ASSERT_EQ(store.ranges().size(), list.size());
  int64_t end = 0;
  for (const ResidentStore::Range& range : store.ranges()) {
    EXPECT_EQ(range.begin % 64, 0);
    EXPECT_GE(range.begin, end);
    end = range.begin + range.size;
    EXPECT_EQ(range.size, range.param->numel());
    range.param->initialize(0);
    range.param->add_use();
    range.param->accumulate(at::full({range.size}, 2.0, store.gradients().options()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(range.param->value().data_ptr()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(range.param->main_grad().data_ptr()) % 64, 0u);
    expect_close(store.values().narrow(0, range.begin, range.size), range.param->value());
    expect_close(store.gradients().narrow(0, range.begin, range.size), range.param->main_grad());
  }
  // The gaps stayed zero.
  EXPECT_EQ(store.values().to(at::kDouble).sum().item<double>(), 3.0 * (1 + 63 + 64 + 65 + 200));
  EXPECT_EQ(store.gradients().to(at::kDouble).sum().item<double>(), 2.0 * (1 + 63 + 64 + 65 + 200));
}

TEST_P(ResidentStoreTest, FrozenParametersLieBehindTheOthersWithoutGradients) {
  ParamList list;
  const Scope root(list, GetParam(), {});
  root.vector("a", 3, Init::constant(1)).trainable = false;
  root.vector("b", 65, Init::constant(2));
  root.vector("c", 5, Init::constant(3)).trainable = false;
  root.vector("d", 7, Init::constant(4)).rule = "another";
  const ResidentStore store(list, at::kCPU);
  EXPECT_EQ(store.values().numel(), 128 + 64 + 64 + 64);
  EXPECT_EQ(store.gradients().numel(), 128 + 64);
  for (const char* frozen : {"a", "c"}) EXPECT_FALSE(list.find(frozen).main_grad().defined());
  for (Param& param : list) param.initialize(0);
  const std::vector<Shard> shards = store.shards();
  ASSERT_EQ(shards.size(), 3u); // b; d; a and c
  std::vector<std::string> names;
  for (const Shard& shard : shards) {
    EXPECT_EQ(shard.trainable(), names.size() < 2);
    for (const Piece& piece : shard.pieces) {
      names.push_back(piece.param->name());
      expect_close(shard.values.narrow(0, piece.begin, piece.size), piece.param->value());
      if (!shard.trainable()) continue;
      EXPECT_EQ(shard.gradients.narrow(0, piece.begin, piece.size).data_ptr(),
                piece.param->main_grad().data_ptr());
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"b", "d", "a", "c"}));
}

TEST_P(ResidentStoreTest, EvaluationHoldsNoGradients) {
  ParamList list;
  Scope(list, GetParam(), {}).vector("p", 5, {});
  const ResidentStore store(list, at::kCPU, /*gradients=*/false);
  EXPECT_FALSE(store.gradients().defined());
  EXPECT_FALSE(list.find("p").main_grad().defined());
  EXPECT_TRUE(list.find("p").value().defined());
}

INSTANTIATE_TEST_SUITE_P(Types, ResidentStoreTest,
                         testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

} // namespace
} // namespace pentatron::nn
