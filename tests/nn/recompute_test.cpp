// A recomputed module is the same function, keeps its inputs only, and runs once more.
#include "pentatron/nn/recompute.h"

#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"
#include "tests/nn/op_fixture.h"
#include "tests/nn/saved_fixture.h"
#include "tests/support/ranks.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

namespace pentatron::nn {
namespace {

using kernels::Activation;
using test::held_bytes;
using test::Params;
using test::Pass;
using test::randn;

constexpr int64_t kModuleTokens = 40, kModuleIn = 6, kModuleWide = 32;
constexpr int64_t kWideBytes = kModuleTokens * kModuleWide * 8;

/// What of y = linear(dropout(gelu(linear(x)))) is a module.
enum class Recomputed : uint8_t { kNone, kActivation, kAll, kInBetween, kEach };

struct Trained {
  at::Tensor y, dx;
  std::vector<at::Tensor> grads;
  int64_t kept = 0, peak = 0;
  int runs = 0;
};

Trained train(Recomputed which, const std::shared_ptr<SavedHooks>& hooks = nullptr,
              bool train_second = true) {
  install_counting_allocator();
  Params params;
  Param& first = params.add("first", randn({kModuleWide, kModuleIn}, 1));
  Param& bias = params.add("bias", randn({kModuleWide}, 2));
  Param& second = params.add("second", randn({kModuleIn, kModuleWide}, 3));
  second.trainable = train_second;
  Pass pass(kModuleTokens);
  pass.ctx.training = true;
  const at::Tensor x = randn({kModuleTokens, kModuleIn}, 4).requires_grad_(true),
                   dy = randn({kModuleTokens, kModuleIn}, 5);
  Trained out;
  using Tensors = std::vector<at::Tensor>;
  const ModuleFn activate = [&](const Tensors& in, const ForwardContext& ctx) {
    ++out.runs;
    return Tensors{
        dropout(activation(in[0], Activation::kGelu, false), {.p = 0.4, .site = 3}, ctx)};
  };
  const ModuleFn widen = [&](const Tensors& in, const ForwardContext& ctx) {
    ++out.runs;
    return Tensors{linear(in[0], first, &bias, ctx)};
  };
  const ModuleFn narrow = [&](const Tensors& in, const ForwardContext& ctx) {
    return Tensors{linear(in[0], second, nullptr, ctx)};
  };
  const auto module = [&](bool wanted, const ModuleFn& fn, const Tensors& in) {
    return wanted ? recompute_module(fn, in, pass.ctx) : fn(in, pass.ctx);
  };
  {
    const MemoryScope memory(MemoryCategory::kActivations);
    const int64_t before = held_bytes();
    at::Tensor y;
    SavedTensors account;
    {
      const SavedTensorsScope scope(account);
      const SavedHooksScope installed(hooks);
      const auto body = [&](const Tensors& in, const ForwardContext& ctx) {
        return narrow(activate(widen(in, ctx), ctx), ctx);
      };
      if (which == Recomputed::kAll) {
        y = recompute_module(body, {x}, pass.ctx)[0];
      } else if (which == Recomputed::kInBetween) {
        const auto inner = [&](const Tensors& in, const ForwardContext& ctx) {
          // The module within is a part of this one.
          return recompute_module(activate, widen(in, ctx), ctx);
        };
        y = narrow(recompute_module(inner, {x}, pass.ctx), pass.ctx)[0];
      } else {
        const bool each = which == Recomputed::kEach;
        y = module(each, narrow,
                   module(which != Recomputed::kNone, activate, module(each, widen, {x})))[0];
      }
    }
    const auto own = static_cast<int64_t>(y.storage().nbytes());
    out.kept = held_bytes() - before - own;
    EXPECT_EQ(out.kept, account.bytes({x, y, pass.layout.row_ids}));
    out.y = y.detach().clone();
    reset_memory_peak(0);
    y.backward(dy.clone());
    out.peak = test::peak_bytes() - before;
  }
  out.dx = x.grad();
  for (const Param* param : {&first, &bias, &second}) {
    out.grads.push_back(param->main_grad());
    EXPECT_EQ(param->outstanding_uses(), 0) << param->name();
  }
  return out;
}

void expect_same(const Trained& a, const Trained& b) {
  EXPECT_TRUE(test::same_bits(a.y, b.y));
  EXPECT_TRUE(test::same_bits(a.dx, b.dx));
  for (size_t i = 0; i < a.grads.size(); ++i)
    EXPECT_TRUE(test::same_bits(a.grads[i], b.grads[i])) << i;
}

TEST(RecomputedModule, ChangesNoBitAndKeepsItsInputs) {
  const Trained plain = train(Recomputed::kNone);
  EXPECT_EQ(plain.kept, 2 * kWideBytes); // inputs of the activation and of the second product
  EXPECT_EQ(plain.runs, 2);
  struct Expected {
    Recomputed which;
    int64_t kept;
    int runs;
  };
  for (const auto& [which, kept, runs] : {Expected{Recomputed::kActivation, kWideBytes, 3},
                                          {Recomputed::kAll, 0, 4},
                                          {Recomputed::kInBetween, 0, 4},
                                          {Recomputed::kEach, 2 * kWideBytes, 2}}) {
    SCOPED_TRACE(static_cast<int>(which));
    const Trained again = train(which);
    expect_same(again, plain);
    EXPECT_EQ(again.kept, kept);
    EXPECT_EQ(again.runs, runs);
  }
}

TEST(RecomputedModule, WorksWithOffload) {
  for (const Recomputed which : {Recomputed::kActivation, Recomputed::kAll, Recomputed::kEach}) {
    const auto offload = std::make_shared<test::Offload>();
    const Trained both = train(which, offload);
    expect_same(both, train(Recomputed::kNone));
    EXPECT_EQ(both.kept, 0);
    EXPECT_GT(offload->loaded, 0);
  }
}

TEST(RecomputedModule, IsNotRunAgainForNothing) {
  const Trained plain = train(Recomputed::kNone, nullptr, /*train_second=*/false);
  const Trained again = train(Recomputed::kActivation, nullptr, /*train_second=*/false);
  expect_same(again, plain);
  EXPECT_EQ(again.runs, plain.runs);
}

/// A stack of modules: the peak is that of one.
TEST(RecomputedModule, LowersThePeak) {
  const auto peak = [](bool recompute) {
    install_counting_allocator();
    Pass pass(kModuleTokens);
    const MemoryScope memory(MemoryCategory::kActivations);
    const at::Tensor x = randn({kModuleTokens, kModuleWide}, 4).requires_grad_(true);
    reset_memory_peak(0);
    const int64_t before = held_bytes();
    const ModuleFn block = [](const auto& in, const ForwardContext&) {
      at::Tensor y = in[0];
      for (int i = 0; i < 6; ++i) y = nn::tanh(y);
      return std::vector<at::Tensor>{y};
    };
    at::Tensor y = x;
    for (int i = 0; i < 6; ++i)
      y = recompute ? recompute_module(block, {y}, pass.ctx)[0] : block({y}, pass.ctx)[0];
    y.backward(at::ones_like(y));
    return (test::peak_bytes() - before) / kWideBytes;
  };
  EXPECT_GE(peak(false), 36);
  EXPECT_LE(peak(true), 18);
}

/// An input that an operator inside overwrites with its gradient is still read by the module.
TEST(RecomputedModule, RunsBeforeItsInputIsOverwritten) {
  const auto gradient = [](bool recompute) {
    Pass pass(kModuleTokens);
    Params params;
    Param& w = params.add("w", randn({kModuleWide, kModuleIn}, 1));
    const at::Tensor x = randn({kModuleTokens, kModuleIn}, 4).requires_grad_(true);
    const ModuleFn fork = [](const auto& in, const ForwardContext&) {
      // The activation's backward comes first.
      const at::Tensor late = nn::tanh(nn::tanh(in[0]));
      return std::vector<at::Tensor>{late, activation(in[0], Activation::kSilu, false)};
    };
    const at::Tensor h = linear(x, w, nullptr, pass.ctx);
    const auto y = recompute ? recompute_module(fork, {h}, pass.ctx) : fork({h}, pass.ctx);
    (y[1] + nn::tanh(y[0])).backward(randn({kModuleTokens, kModuleWide}, 5));
    return x.grad();
  };
  EXPECT_TRUE(test::same_bits(gradient(true), gradient(false)));
}

TEST(RecomputedModule, WithoutAutogradIsItsFunction) {
  Pass pass(kModuleTokens);
  const at::NoGradGuard no_grad;
  int runs = 0;
  const at::Tensor x = randn({2, 2}, 1);
  const auto y = recompute_module(
      [&](const auto& in, const ForwardContext&) {
        ++runs;
        return std::vector<at::Tensor>{nn::tanh(in[0])};
      },
      {x}, pass.ctx);
  EXPECT_TRUE(at::equal(y[0], at::tanh(x)));
  EXPECT_EQ(runs, 1);
}

TEST(RecomputedModule, MustKeepTheSameTensorsWhenItRunsAgain) {
  for (const int change : {-1, 1}) {
    Pass pass(kModuleTokens);
    const at::Tensor x = randn({2, 2}, 1).requires_grad_(true);
    int count = 2;
    const at::Tensor y = recompute_module(
        [&](const auto& in, const ForwardContext&) {
          at::Tensor h = in[0];
          for (int i = 0; i < count; ++i) h = nn::tanh(h);
          return std::vector<at::Tensor>{h};
        },
        {x}, pass.ctx)[0];
    count += change;
    const std::string message = test::error_of([&] { y.backward(at::ones_like(y)); });
    EXPECT_NE(message.find("internal error"), std::string::npos) << message;
  }
}

} // namespace
} // namespace pentatron::nn
