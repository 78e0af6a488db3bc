// LibTorch's fused attention kernels on GPUs. Its operators are found by the dispatcher, so this
// compiles and links without CUDA; on a CPU they throw.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "pentatron/kernels/common/build.h"
#include "pentatron/layers/varlen_attention.h"

namespace pentatron::layers {

namespace {
std::atomic<bool> deterministic = true;
} // namespace

void set_deterministic_attention(bool value) {
  deterministic = value;
}
bool deterministic_attention() {
  return deterministic;
}

namespace detail {

namespace {

int64_t rounded_up(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

/// Kernels that sum gradients with atomics choose their ordered form under this switch.
class Deterministic {
 public:
  explicit Deterministic(bool deterministic) {
    at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false); // a pass over every result
  }
  ~Deterministic() {
    at::globalContext().setDeterministicAlgorithms(before_, warns_);
    at::globalContext().setDeterministicFillUninitializedMemory(fills_);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  const bool before_ = at::globalContext().deterministicAlgorithms(),
             warns_ = at::globalContext().deterministicAlgorithmsWarnOnly(),
             fills_ = at::globalContext().deterministicFillUninitializedMemory();
};

/// FlashAttention-2 (Dao 2023, arXiv:2307.08691).
class Flash final : public VarlenKernel {
 public:
  bool takes(const VarlenPlan&, at::ScalarType dtype, int64_t head_size) const override {
    return (dtype == at::kBFloat16 || dtype == at::kHalf) && head_size <= 256;
  }
  int64_t padded_head(int64_t size) const override { return rounded_up(size, 8); }

  AttentionResult forward(const VarlenOperands& x) const override {
    const VarlenCall& call = *x.call;
    auto [out, lse, rng, unused, mask] = at::_flash_attention_forward(
        x.q, x.k, x.v, x.q_ends, x.k_ends, call.queries.longest, call.keys.longest,
        /*dropout_p=*/0.0, causal(call), /*return_debug_mask=*/false, x.scale, call.left,
        call.right);
    return {std::move(out), std::move(lse)};
  }

  AttentionGradients backward(const VarlenOperands& x, const AttentionResult& saved,
                              const at::Tensor& dout) const override {
    const VarlenCall& call = *x.call;
    // Of dropout, which there is none of.
    const at::Tensor rng = at::zeros({2}, x.q.options().dtype(at::kUInt64)),
                     unused = at::zeros({}, x.q.options().dtype(at::kUInt64));
    const Deterministic guard(deterministic_attention());
    auto [dq, dk, dv] = at::_flash_attention_backward(
        dout.contiguous(), x.q, x.k, x.v, saved.out.contiguous(), saved.lse, x.q_ends, x.k_ends,
        call.queries.longest, call.keys.longest, /*dropout_p=*/0.0, causal(call), rng, unused,
        x.scale, call.left, call.right);
    return {std::move(dq), std::move(dk), std::move(dv), {}, {}};
  }

 private:
  static bool causal(const VarlenCall& call) {
    return call.left == VarlenCall::kAll && call.right == 0;
  }
};

/// Samples of one length, side by side, as cuDNN takes them.
class Samples {
 public:
  explicit Samples(const VarlenCall& call)
      : count_(static_cast<int64_t>(call.queries.ends.size()) - 1), length_(call.queries.longest) {}
  int64_t length() const { return length_; }
  /// [T, heads, d] -> [samples, heads, length, d], a view.
  at::Tensor of(const at::Tensor& x) const {
    return x.unflatten(0, {count_, length_}).transpose(1, 2);
  }
  at::Tensor back(const at::Tensor& x) const { return x.transpose(1, 2).flatten(0, 1); }
  /// lse [n, T] -> [samples, n, length, 1]
  at::Tensor of_lse(const at::Tensor& lse) const {
    return lse.unflatten(1, {count_, length_}).transpose(0, 1).contiguous().unsqueeze(3);
  }
  at::Tensor lse_back(const at::Tensor& lse) const {
    return lse.reshape({count_, -1, length_}).transpose(0, 1).flatten(1);
  }

 private:
  int64_t count_, length_;
};

/// cuDNN's fused attention. Its backward is faster than FlashAttention-2's but sums dq in any
/// order.
class Cudnn final : public VarlenKernel {
 public:
  bool takes(const VarlenPlan& plan, at::ScalarType dtype, int64_t head_size) const override {
    return plan.training && (dtype == at::kBFloat16 || dtype == at::kHalf) && head_size <= 128 &&
           available() && std::ranges::all_of(plan.calls, [](const VarlenCall& call) {
             return call.left == VarlenCall::kAll &&
                    (call.right == VarlenCall::kAll || call.right == 0) &&
                    call.queries.longest >= kShortest && equal_lengths(call) && kept(call);
           });
  }
  int64_t padded_head(int64_t size) const override { return rounded_up(size, 8); }

  AttentionResult forward(const VarlenOperands& x) const override {
    const Samples samples(*x.call);
    const auto result = at::_cudnn_attention_forward(
        samples.of(x.q), samples.of(x.k), samples.of(x.v), /*attn_bias=*/{}, /*cum_seq_q=*/{},
        /*cum_seq_k=*/{}, samples.length(), samples.length(), /*compute_log_sumexp=*/true,
        /*dropout_p=*/0.0, causal(x), /*return_debug_mask=*/false, x.scale);
    return {samples.back(std::get<0>(result)), samples.lse_back(std::get<1>(result))};
  }

  AttentionGradients backward(const VarlenOperands& x, const AttentionResult& saved,
                              const at::Tensor& dout) const override {
    if (deterministic_attention()) return flash_on_gpu().backward(x, saved, dout);
    const Samples samples(*x.call);
    const at::Tensor none = at::zeros({}, x.q.options().dtype(at::kLong)); // of dropout
    const auto [dq, dk, dv] = at::_cudnn_attention_backward(
        samples.of(dout.contiguous()), samples.of(x.q), samples.of(x.k), samples.of(x.v),
        samples.of(saved.out.contiguous()), samples.of_lse(saved.lse), none, none,
        /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, samples.length(), samples.length(),
        /*dropout_p=*/0.0, causal(x), x.scale);
    return {samples.back(dq), samples.back(dk), samples.back(dv), {}, {}};
  }

 private:
  static constexpr int64_t kShortest = 64; // it refuses one token, and gains nothing with few

  static bool causal(const VarlenOperands& x) { return x.call->right == 0; }
  /// LibTorch keeps what cuDNN prepares for each number and length of documents, so there must not
  /// be many: the first ones of the process.
  static bool kept(const VarlenCall& call) {
    constexpr size_t kMost = 32;
    static std::mutex mutex;
    static std::set<std::pair<size_t, int64_t>> shapes;
    const std::lock_guard lock(mutex);
    const std::pair shape{call.queries.ends.size(), call.queries.longest};
    if (!shapes.contains(shape) && shapes.size() == kMost) return false;
    shapes.insert(shape);
    return true;
  }
  static bool available() {
    static const bool result =
        at::globalContext().hasCuDNN() &&
        kernels::gpu_capability(at::detail::getCUDAHooks().getCurrentDevice()) >= 90;
    return result;
  }
};

/// Memory-efficient attention (Rabe & Staats 2021, arXiv:2112.05682; CUTLASS).
class Efficient final : public VarlenKernel {
 public:
  bool takes(const VarlenPlan& plan, at::ScalarType dtype, int64_t) const override {
    return dtype == at::kFloat && std::ranges::all_of(plan.calls, [](const VarlenCall& call) {
             return call.left == VarlenCall::kAll &&
                    (call.right == VarlenCall::kAll || call.right == 0);
           });
  }
  int64_t padded_head(int64_t size) const override { return rounded_up(size, 4); } // 16 bytes

  AttentionResult forward(const VarlenOperands& x) const override {
    const VarlenCall& call = *x.call;
    const auto [out, lse, seed, offset, longest_q, longest_k] = at::_efficient_attention_forward(
        x.q.unsqueeze(0), repeated(x.k, x).unsqueeze(0), repeated(x.v, x).unsqueeze(0), {},
        x.q_ends, x.k_ends, call.queries.longest, call.keys.longest, /*dropout_p=*/0.0, mask(call),
        /*compute_log_sumexp=*/true, x.scale);
    // lse [documents, n, longest rounded up to 32] -> [n, Q]
    return {out.squeeze(0),
            lse.permute({1, 0, 2}).flatten(1).index_select(1, places(x, lse.size(2)))};
  }

  AttentionGradients backward(const VarlenOperands& x, const AttentionResult& saved,
                              const at::Tensor& dout) const override {
    const VarlenCall& call = *x.call;
    const int64_t n = x.q.size(1), width = rounded_up(call.queries.longest, 32);
    const int64_t documents = static_cast<int64_t>(call.queries.ends.size()) - 1;
    const at::Tensor lse = at::zeros({n, documents * width}, saved.lse.options());
    lse.index_copy_(1, places(x, width), saved.lse);
    const at::Tensor none = at::zeros({}, x.q.options().dtype(at::kLong)); // of dropout
    const at::Tensor k = repeated(x.k, x), v = repeated(x.v, x);
    const auto [dq, dk, dv, dbias] = at::_efficient_attention_backward(
        dout.contiguous().unsqueeze(0), x.q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), {},
        saved.out.contiguous().unsqueeze(0), x.q_ends, x.k_ends, call.queries.longest,
        call.keys.longest, lse.view({n, documents, width}).transpose(0, 1).contiguous(),
        /*dropout_p=*/0.0, none, none, mask(call), /*bias_requires_grad=*/false, x.scale,
        /*num_splits_key=*/1);
    return {dq.squeeze(0), summed(dk.squeeze(0), x), summed(dv.squeeze(0), x), {}, {}};
  }

 private:
  static int64_t mask(const VarlenCall& call) {
    constexpr int64_t kNone = 0, kFromTheEnd = 2;
    return call.right == 0 ? kFromTheEnd : kNone;
  }
  /// Key heads as often as query heads: [K, g, d] -> [K, n, d].
  static at::Tensor repeated(const at::Tensor& x, const VarlenOperands& all) {
    const int64_t share = all.q.size(1) / x.size(1);
    return share == 1 ? x : x.repeat_interleave(share, 1, x.size(1) * share);
  }
  static at::Tensor summed(const at::Tensor& x, const VarlenOperands& all) {
    const int64_t g = all.k.size(1);
    return x.size(1) == g ? x : x.unflatten(1, {g, x.size(1) / g}).sum(2);
  }
  /// Of query rows in [documents x width].
  static at::Tensor places(const VarlenOperands& x, int64_t width) {
    const at::Tensor rows = at::arange(x.call->queries.ends.back(), x.q_ends.options());
    const at::Tensor document =
        at::searchsorted(x.q_ends.slice(0, 1), rows, /*out_int32=*/false, /*right=*/true);
    return rows - x.q_ends.index_select(0, document) + document * width;
  }
};

} // namespace

const VarlenKernel& cudnn_on_gpu() {
  static const Cudnn kernel;
  return kernel;
}

const VarlenKernel& flash_on_gpu() {
  static const Flash kernel;
  return kernel;
}

const VarlenKernel& efficient_on_gpu() {
  static const Efficient kernel;
  return kernel;
}

} // namespace detail

} // namespace pentatron::layers
