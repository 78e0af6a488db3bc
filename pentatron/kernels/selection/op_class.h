/// Classes of arguments: within one class the same entry of an operator's list runs.
///
/// A class never depends on the number of rows or tokens of a call, so that a token's result is the
/// same alone and in a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

enum class QuantRecipe : uint8_t; // quantize/recipe.h

/// Operators with several entries on a CPU.
enum class Op : uint8_t {
  kGemm,
  kAttentionForward,
  kAttentionBackward,
  kCachedAttention,
  kNormForward,
  kNormBackward,
  kRope,
  kActivationForward,
  kActivationBackward,
  kDropout,
  kSumRows,
  kCrossEntropyStats,
  kCrossEntropyGradient,
  kCrossEntropy,
  kEmbedding,
  kEmbeddingGradient,
  kAdamW,
  kSgd,
  kLion,
  kSumOfSquares,
  kFindNonfinite,
  kScale,
  kCast,
  kQuantize,
  kHadamard,
};
inline constexpr int kNumOps = static_cast<int>(Op::kHadamard) + 1;

/// One class of one operator.
struct OpClass {
  Op op = Op::kGemm;
  uint8_t part = 0; ///< below kMaxParts

  static constexpr int kMaxParts = 96;
  constexpr size_t index() const {
    return static_cast<size_t>(op) * kMaxParts + static_cast<size_t>(part);
  }
  bool operator==(const OpClass&) const = default;
};
inline constexpr size_t kNumOpClasses = static_cast<size_t>(kNumOps) * OpClass::kMaxParts;

/// One class for each element type.
constexpr OpClass op_class(Op op, DType dtype) {
  return {op, static_cast<uint8_t>(dtype)};
}

inline constexpr int64_t kGemmFewColumns = 512; ///< n up to this is one class, more another
inline constexpr int64_t kGemmShortSum = 512;   ///< the same for k

/// Types, transpositions, n above kGemmFewColumns, k above kGemmShortSum. With A transposed, k
/// counts tokens (a weight gradient) and does not count.
constexpr OpClass gemm_class(DType in, DType out, bool transpose_a, bool transpose_b, int64_t n,
                             int64_t k) {
  const int types = in == DType::kFloat32   ? 0
                    : in == DType::kFloat64 ? 3
                    : in == DType::kFloat16 ? (out == in ? 5 : 4)
                    : out == in             ? 2
                                            : 1;
  const int many = n > kGemmFewColumns, deep = !transpose_a && k > kGemmShortSum;
  return {Op::kGemm,
          static_cast<uint8_t>(types * 16 + transpose_a * 8 + transpose_b * 4 + many * 2 + deep)};
}

/// Element type and head size: up to 64, up to 128, more. `op` is one of the attention operators.
constexpr OpClass attention_class(Op op, DType dtype, int64_t head_size) {
  const int size = head_size <= 64 ? 0 : head_size <= 128 ? 1 : 2;
  return {op, static_cast<uint8_t>(static_cast<int>(dtype) * 4 + size)};
}

/// Element type and recipe, which says what is computed for each number; not whether blocks lie
/// along the rows.
constexpr OpClass quantize_class(DType dtype, QuantRecipe recipe) {
  return {Op::kQuantize,
          static_cast<uint8_t>(static_cast<int>(dtype) * 8 + static_cast<int>(recipe))};
}

/// "gemm bfloat16-float32 nt n<=512 k>512", "norm_forward float32", "quantize float32 mxfp8_1x32".
std::string class_name(OpClass c);
std::string_view op_name(Op op);
/// Of the operands; of a product's inputs.
DType element_type(OpClass c);
/// Of a class of Op::kQuantize.
QuantRecipe recipe_of(OpClass c);

/// Every class that a program can meet.
const std::vector<OpClass>& all_op_classes();
/// The class of that name, if there is one.
std::optional<OpClass> find_op_class(std::string_view name);

} // namespace pentatron::kernels
