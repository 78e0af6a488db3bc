#include "pentatron/kernels/selection/op_class.h"

#include <array>
#include <map>

#include <fmt/format.h>

#include "pentatron/kernels/quantize/recipe.h"

namespace pentatron::kernels {

namespace {

constexpr std::array<std::string_view, kNumOps> kNames = {"gemm",
                                                          "attention_forward",
                                                          "attention_backward",
                                                          "cached_attention",
                                                          "norm_forward",
                                                          "norm_backward",
                                                          "rope",
                                                          "activation_forward",
                                                          "activation_backward",
                                                          "dropout",
                                                          "sum_rows",
                                                          "cross_entropy_stats",
                                                          "cross_entropy_gradient",
                                                          "cross_entropy",
                                                          "embedding",
                                                          "embedding_gradient",
                                                          "adamw",
                                                          "sgd",
                                                          "lion",
                                                          "sum_of_squares",
                                                          "find_nonfinite",
                                                          "scale",
                                                          "cast",
                                                          "quantize",
                                                          "hadamard"};

constexpr DType kTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};

bool is_attention(Op op) {
  return op == Op::kAttentionForward || op == Op::kAttentionBackward || op == Op::kCachedAttention;
}

/// Optimizers update values of the accumulate type.
bool takes(Op op, DType dtype) {
  const bool updates = op == Op::kAdamW || op == Op::kSgd || op == Op::kLion;
  return !updates || acc_dtype(dtype) == dtype;
}

std::string gemm_name(int part) {
  static constexpr std::array<std::string_view, 6> kTypesOf = {
      "float32", "bfloat16-float32", "bfloat16", "float64", "float16-float32", "float16"};
  const bool transpose_a = (part & 8) != 0;
  std::string name = fmt::format("gemm {} {}{} n{}{}", kTypesOf[static_cast<size_t>(part / 16)],
                                 transpose_a ? 't' : 'n', (part & 4) != 0 ? 't' : 'n',
                                 (part & 2) != 0 ? ">" : "<=", kGemmFewColumns);
  if (!transpose_a) name += fmt::format(" k{}{}", (part & 1) != 0 ? ">" : "<=", kGemmShortSum);
  return name;
}

std::vector<OpClass> list_gemm_classes() {
  std::vector<OpClass> classes;
  for (int part = 0; part < 96; ++part) {
    if (part / 16 == 3) continue;                     // float64 has the reference alone
    if ((part & 8) != 0 && (part & 5) != 0) continue; // no k; and no product of two transposed
    classes.push_back({Op::kGemm, static_cast<uint8_t>(part)});
  }
  return classes;
}

std::vector<OpClass> list_classes() {
  std::vector<OpClass> classes = list_gemm_classes();
  for (int op = 1; op < kNumOps; ++op) {
    for (const DType dtype : kTypes) {
      if (!takes(static_cast<Op>(op), dtype)) continue;
      if (is_attention(static_cast<Op>(op))) {
        for (const int64_t head_size : {64, 128, 256})
          classes.push_back(attention_class(static_cast<Op>(op), dtype, head_size));
      } else if (static_cast<Op>(op) == Op::kQuantize) {
        for (size_t recipe = 0; recipe < kRecipes.size(); ++recipe)
          classes.push_back(quantize_class(dtype, static_cast<QuantRecipe>(recipe)));
      } else {
        classes.push_back(op_class(static_cast<Op>(op), dtype));
      }
    }
  }
  return classes;
}

} // namespace

std::string_view op_name(Op op) {
  return kNames[static_cast<size_t>(op)];
}

DType element_type(OpClass c) {
  if (is_attention(c.op)) return static_cast<DType>(c.part / 4);
  if (c.op == Op::kQuantize) return static_cast<DType>(c.part / 8);
  if (c.op != Op::kGemm) return static_cast<DType>(c.part);
  const int types = c.part / 16; // as in gemm_class
  static constexpr std::array<DType, 6> kIn = {DType::kFloat32, DType::kBFloat16, DType::kBFloat16,
                                               DType::kFloat64, DType::kFloat16,  DType::kFloat16};
  return kIn[static_cast<size_t>(types)];
}

static_assert(kRecipes.size() <= 8); // as in quantize_class

QuantRecipe recipe_of(OpClass c) {
  return static_cast<QuantRecipe>(c.part % 8);
}

std::string class_name(OpClass c) {
  if (c.op == Op::kGemm) return gemm_name(c.part);
  if (c.op == Op::kQuantize)
    return fmt::format("{} {} {}", op_name(c.op), name(element_type(c)), traits(recipe_of(c)).name);
  if (!is_attention(c.op)) return fmt::format("{} {}", op_name(c.op), name(DType{c.part}));
  static constexpr std::array<std::string_view, 4> kSizes = {"head<=64", "head<=128", "head>128",
                                                             ""};
  return fmt::format("{} {} {}", op_name(c.op), name(static_cast<DType>(c.part / 4)),
                     kSizes[c.part % 4]);
}

const std::vector<OpClass>& all_op_classes() {
  static const std::vector<OpClass> classes = list_classes();
  return classes;
}

std::optional<OpClass> find_op_class(std::string_view name) {
  static const auto by_name = [] {
    std::map<std::string, OpClass, std::less<>> map;
    for (const OpClass c : all_op_classes()) map.emplace(class_name(c), c);
    return map;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? std::nullopt : std::optional(found->second);
}

} // namespace pentatron::kernels
