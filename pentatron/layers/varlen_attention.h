/// Attention with fused GPU kernels for concatenated documents ("varlen"): converts pairs to the
/// arguments of such calls and back. The kernels themselves are behind VarlenKernel, so that
/// everything here runs and is tested on any device.
///
/// A kernel's mask is the same for all documents of a call. Counted from the end, query i of a
/// document with Q queries and K keys sees keys i + (K - Q) - left to i + (K - Q) + right. Pairs
/// are cut to the queries that see a key and the keys that are seen; then every mask but kPrefix
/// has this form, and pairs of equal left and right share a call. Heads are filled up with zeros to
/// a size that the kernel takes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pentatron/layers/core_attention_detail.h"

namespace pentatron::layers::detail {

/// Where the rows of documents lie side by side in a tensor.
struct VarlenRows {
  std::vector<int32_t> ends = {0}; ///< [documents + 1]: cumulative sizes
  int64_t longest = 0;
  int64_t begin = 0;         ///< first row in the tensor, if `rows` is empty
  std::vector<int64_t> rows; ///< of all documents in order, where they are not neighbours

  int64_t size() const { return ends.back(); }
};

struct VarlenCall {
  VarlenRows queries, keys;
  int64_t left = kAll, right = kAll;

  static constexpr int64_t kAll = -1; ///< no limit on this side
};

/// The calls that pairs become, and the pairs cut to what is seen. Nothing for kPrefix.
struct VarlenPlan {
  std::vector<VarlenCall> calls;
  std::vector<AttentionPair> pairs; ///< with queries and keys
  bool training = false;            ///< as AttentionInputs::training
};
std::optional<VarlenPlan> plan_varlen(const AttentionInputs& in);

/// Documents of a call side by side. Sizes of heads are equal in q, k and v.
struct VarlenOperands {
  at::Tensor q, k, v;        // [Q, n, d], [K, g, d], [K, g, d]
  at::Tensor q_ends, k_ends; // [documents + 1] int32, on the device
  const VarlenCall* call;
  double scale = 1;
};

class VarlenKernel {
 public:
  virtual ~VarlenKernel() = default;
  /// Whether it takes these calls; `head_size` as padded_head() gives it.
  virtual bool takes(const VarlenPlan& plan, at::ScalarType dtype, int64_t head_size) const = 0;
  /// The least head size of at least `size` that it takes.
  virtual int64_t padded_head(int64_t size) const = 0;
  /// out [Q, n, d], lse [n, Q] in the accumulate type.
  virtual AttentionResult forward(const VarlenOperands& x) const = 0;
  /// dq, dk, dv as the operands; `lse` may be that of more keys than the call's (ring attention).
  virtual AttentionGradients backward(const VarlenOperands& x, const AttentionResult& saved,
                                      const at::Tensor& dout) const = 0;
};

/// Whether `kernel` can do it: no dropout, cap, bias or prefix.
bool varlen_accepts(const AttentionInputs& in, const VarlenKernel& kernel);
AttentionResult varlen_forward(const AttentionInputs& in, const VarlenKernel& kernel);
AttentionGradients varlen_backward(const AttentionInputs& in, const AttentionResult& saved,
                                   const OutputGradients& d, const VarlenKernel& kernel);

/// LibTorch's kernels on GPUs. cuDNN's for bf16 and fp16, on GPUs of compute capability 9.0 and
/// later, in training: documents of one length, of a few lengths in all because each is prepared
/// for and kept, heads of at most 128, no windows. Its backward sums in any order, so deterministic
/// runs use FlashAttention's instead. FlashAttention-2 for
/// bf16 and fp16: heads of at most 256, key-value heads shared, windows. The memory-efficient
/// kernel for fp32: without windows.
const VarlenKernel& cudnn_on_gpu();
const VarlenKernel& flash_on_gpu();
const VarlenKernel& efficient_on_gpu();

/// Whether all documents of a call have one length, the same for queries and keys.
bool equal_lengths(const VarlenCall& call);

} // namespace pentatron::layers::detail
