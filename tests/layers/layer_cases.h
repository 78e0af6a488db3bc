/// Layers of every form for transformer_layer_test.cpp, and the formulas of their papers.
#pragma once

#include "pentatron/layers/transformer_layer.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/param_store.h"
#include "tests/nn/op_fixture.h"
#include "tests/nn/saved_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>

namespace pentatron::layers {
namespace {

using kernels::Activation;
using kernels::NormKind;
using test::expect_close;
using test::randn;

constexpr int64_t kHidden = 12, kBatch = 2, kSequence = 6, kMemory = 5;
/// Of what is recomputed: nothing, each part, some together.
[[maybe_unused]] std::vector<nn::Parts> some_parts() {
  using nn::Part;
  std::vector<nn::Parts> sets = {{}};
  for (size_t i = 0; i < nn::kNumParts; ++i) sets.push_back({static_cast<Part>(i)});
  sets.push_back({Part::kNorm, Part::kMlaUpProj, Part::kCoreAttention});
  sets.push_back({Part::kNorm, Part::kMlp, Part::kMlpActivation});
  sets.push_back({Part::kNorm, Part::kMoe, Part::kSharedExperts, Part::kCoreAttention});
  sets.push_back({Part::kSharedExperts, Part::kMlpActivation, Part::kMoeActivation});
  return sets;
}

[[maybe_unused]] std::vector<std::pair<bool, nn::Parts>>
with_and_without_dropout(const std::vector<nn::Parts>& sets) {
  std::vector<std::pair<bool, nn::Parts>> all;
  for (const nn::Parts parts : sets)
    for (const bool dropout : {false, true}) all.emplace_back(dropout, parts);
  return all;
}

constexpr test::Tolerance kLayerExact{1e-10, 1e-12};

struct LayerCase {
  std::string name;
  TransformerLayerOptions options;
  int64_t rotary_dim = 0;
  bool interleaved = false;
  std::vector<nn::TokenRange> real = {}; ///< of x
  std::optional<RelativeBiasOptions> bias = {};
};

[[maybe_unused]] void PrintTo(const LayerCase& c, std::ostream* os) {
  *os << c.name;
}

/// Layers of BERT and T5, with padding.
std::vector<LayerCase> encoder_decoder_cases() {
  std::vector<LayerCase> all;
  all.push_back({.name = "bert",
                 .options = {.attention = {.hidden = kHidden,
                                           .heads = 4,
                                           .kv_heads = 4,
                                           .head_size = 3,
                                           .qkv_bias = true,
                                           .proj_bias = true,
                                           .mask = AttentionMask::kFull},
                             .mlp = {.hidden = kHidden, .ffn = 20, .bias = true},
                             .norm = {.kind = NormKind::kLayerNorm, .eps = 1e-12},
                             .norm_input = false,
                             .norm_residual = true},
                 .real = {{0, 4}, {2, 6}}});
  LayerCase encoder;
  encoder.name = "t5_encoder";
  encoder.options = {.attention = {.hidden = kHidden,
                                   .heads = 2,
                                   .kv_heads = 2,
                                   .head_size = 5,
                                   .mask = AttentionMask::kFull,
                                   .scale = 1},
                     .mlp = {.hidden = kHidden, .ffn = 14, .activation = Activation::kRelu}};
  encoder.real = {{0, 6}, {0, 3}};
  encoder.bias = {.heads = 2, .buckets = 6, .max_distance = 5};
  all.push_back(encoder);
  LayerCase decoder = encoder;
  decoder.name = "t5_decoder";
  decoder.options.attention.mask = AttentionMask::kCausal;
  decoder.options.cross = {
      .hidden = kHidden, .heads = 2, .kv_heads = 2, .head_size = 5, .scale = 1};
  decoder.options.mlp.activation = Activation::kGeluTanh;
  decoder.options.mlp.gated = true;
  decoder.bias->bidirectional = false;
  all.push_back(decoder);
  LayerCase other = decoder; // post-norm with every bias, groups, and a memory of its own width
  other.name = "post_norm_decoder";
  other.options.attention.qkv_bias = other.options.attention.proj_bias = true;
  other.options.cross = {.hidden = kHidden,
                         .memory = 7,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_size = 3,
                         .qkv_bias = true,
                         .proj_bias = true};
  other.options.norm = {.kind = NormKind::kLayerNorm};
  other.options.norm_input = false;
  other.options.norm_output = other.options.norm_residual = true;
  other.bias.reset();
  all.push_back(other);
  return all;
}

/// Latent attention: with and without compression of queries, every option of attention.
std::vector<LayerCase> latent_cases() {
  LayerCase deepseek{.name = "deepseek",
                     .options = {.attention = {.hidden = kHidden, .heads = 4, .head_size = 7},
                                 .mlp = {.hidden = kHidden,
                                         .ffn = 10,
                                         .activation = Activation::kSilu,
                                         .gated = true}},
                     .rotary_dim = 4,
                     .interleaved = true};
  deepseek.options.attention.latent =
      LatentSizes{.query_rank = 8, .rank = 6, .plain_size = 3, .rotary_size = 4, .value_size = 5};
  LayerCase plain = deepseek;
  plain.name = "latent_keys";
  plain.interleaved = false;
  AttentionOptions& o = plain.options.attention;
  o.latent->query_rank = 0;
  o.latent->value_size = 9;
  o.latent->norm_eps = 1e-3;
  o.norm_zero_centered = true;
  o.qkv_bias = o.proj_bias = true;
  o.scale = 0.7;
  o.window = 3;
  o.softmax = SoftmaxKind::kLearnable;
  LayerCase both = plain;
  both.name = "latents_no_rotary";
  both.options.attention.latent->query_rank = 5;
  both.rotary_dim = 0;
  both.options.norm_output = true;
  return {deepseek, plain, both};
}

[[maybe_unused]] std::vector<LayerCase> cases() {
  std::vector<LayerCase> all;
  all.push_back(
      {.name = "gpt2",
       .options = {
           .attention = {.hidden = kHidden,
                         .heads = 4,
                         .kv_heads = 4,
                         .head_size = 3,
                         .qkv_bias = true,
                         .proj_bias = true},
           .mlp = {.hidden = kHidden, .ffn = 20, .activation = Activation::kGeluTanh, .bias = true},
           .norm = {.kind = NormKind::kLayerNorm}}});
  all.push_back(
      {.name = "llama",
       .options =
           {.attention = {.hidden = kHidden, .heads = 6, .kv_heads = 2, .head_size = 4},
            .mlp = {.hidden = kHidden, .ffn = 10, .activation = Activation::kSilu, .gated = true}},
       .rotary_dim = 4});
  LayerCase qwen = all.back();
  qwen.name = "qwen3";
  qwen.options.attention.qk_norm = QkNorm::kHead;
  qwen.options.attention.norm_eps = 1e-3;
  all.push_back(qwen);
  LayerCase odd = qwen;
  odd.name = "odd";
  odd.options.attention.qkv_bias = true;
  odd.options.attention.norm_zero_centered = true;
  odd.options.attention.scale = 0.7;
  odd.options.attention.window = 3;
  odd.options.attention.softmax = SoftmaxKind::kLearnable;
  odd.options.mlp.activation = Activation::kGelu;
  odd.options.mlp.bias = true;
  odd.options.norm = {.kind = NormKind::kLayerNorm, .eps = 1e-3, .zero_centered = true};
  odd.rotary_dim = 2;
  odd.interleaved = true;
  all.push_back(odd);
  LayerCase plain = odd;
  plain.name = "no_rotary_no_gate";
  plain.rotary_dim = 0;
  plain.options.mlp.gated = false;
  plain.options.mlp.activation = Activation::kSquaredRelu;
  plain.options.attention.softmax = SoftmaxKind::kOffByOne;
  plain.options.norm = {.kind = NormKind::kRmsNorm, .zero_centered = true};
  all.push_back(plain);
  LayerCase olmo = qwen;
  olmo.name = "olmo2";
  olmo.options.attention.qk_norm = QkNorm::kProjection;
  olmo.options.norm_input = false;
  olmo.options.norm_output = true;
  all.push_back(olmo);
  LayerCase glm = odd;
  glm.name = "norms_everywhere";
  glm.options.attention.qk_norm = QkNorm::kProjection; // zero-centered
  glm.options.norm_output = true;
  all.push_back(glm);
  for (const LayerCase& c : encoder_decoder_cases()) all.push_back(c);
  for (const LayerCase& c : latent_cases()) all.push_back(c);
  return all;
}

/// The parameters by name, as leaves of LibTorch's autograd.
using Leaves = std::map<std::string, at::Tensor>;

at::Tensor plain_norm(const at::Tensor& x, const Leaves& p, const std::string& name,
                      const nn::NormOptions& o) {
  const at::Tensor w = p.at(name + ".weight") + (o.zero_centered ? 1.0 : 0.0);
  if (o.kind == NormKind::kRmsNorm) return x * (x.square().mean(-1, true) + o.eps).rsqrt() * w;
  const at::Tensor c = x - x.mean(-1, true);
  return c * (c.square().mean(-1, true) + o.eps).rsqrt() * w + p.at(name + ".bias");
}

at::Tensor plain_linear(const at::Tensor& x, const Leaves& p, const std::string& name) {
  const at::Tensor y = x.matmul(p.at(name + ".weight").t());
  return p.contains(name + ".bias") ? y + p.at(name + ".bias") : y;
}

at::Tensor plain_rotation(const at::Tensor& x, const LayerCase& c) { // [b, s, n, d]
  if (c.rotary_dim == 0) return x;
  const int64_t half = c.rotary_dim / 2;
  const at::Tensor frequencies = at::pow(at::scalar_tensor(10000.0, at::kDouble),
                                         at::arange(half, at::kDouble) * -2.0 / c.rotary_dim);
  const at::Tensor angles =
      at::outer(at::arange(kSequence, at::kDouble), frequencies).view({1, kSequence, 1, half});
  const at::Tensor turned = x.narrow(3, 0, c.rotary_dim),
                   rest = x.narrow(3, c.rotary_dim, x.size(3) - c.rotary_dim);
  at::Tensor a, b;
  if (c.interleaved) {
    const at::Tensor pairs = turned.unflatten(3, {half, 2});
    a = pairs.select(4, 0);
    b = pairs.select(4, 1);
  } else {
    a = turned.narrow(3, 0, half);
    b = turned.narrow(3, half, half);
  }
  const at::Tensor ra = a * angles.cos() - b * angles.sin(),
                   rb = b * angles.cos() + a * angles.sin();
  const at::Tensor joined =
      c.interleaved ? at::stack({ra, rb}, 4).flatten(3) : at::cat({ra, rb}, 3);
  return at::cat({joined, rest}, 3);
}

/// True for real keys: [b, 1, 1, s].
at::Tensor real_keys(const std::vector<nn::TokenRange>& real, int64_t sequence) {
  at::Tensor keys = at::ones({kBatch, 1, 1, sequence}, at::kBool);
  for (size_t b = 0; b < real.size(); ++b) {
    keys[static_cast<int64_t>(b)].fill_(false);
    keys[static_cast<int64_t>(b)].narrow(2, real[b].begin, real[b].end - real[b].begin).fill_(true);
  }
  return keys;
}

/// [n, s, s] from the bucket of each pair by the formula, one by one.
at::Tensor plain_bias(const at::Tensor& weight, const RelativeBiasOptions& o) {
  std::vector<int64_t> buckets;
  for (int64_t i = 0; i < kSequence; ++i) {
    for (int64_t j = 0; j < kSequence; ++j) {
      int64_t half = o.buckets, base = 0, distance = std::max<int64_t>(i - j, 0);
      if (o.bidirectional) {
        half /= 2;
        base = j > i ? half : 0;
        distance = std::abs(i - j);
      }
      const int64_t exact = half / 2;
      if (distance >= exact) {
        const double share = std::log(static_cast<double>(distance) / exact) /
                             std::log(static_cast<double>(o.max_distance) / exact);
        distance = std::min(half - 1, exact + static_cast<int64_t>(share * (half - exact)));
      }
      buckets.push_back(base + distance);
    }
  }
  return weight.index_select(0, at::tensor(buckets, at::kLong))
      .view({kSequence, kSequence, o.heads})
      .permute({2, 0, 1});
}

const std::vector<nn::TokenRange> kRealMemory = {{0, 5}, {1, 4}};

at::Tensor plain_cross(const at::Tensor& x, const at::Tensor& memory, const Leaves& p,
                       const CrossAttentionOptions& o) {
  const int64_t n = o.heads, g = o.kv_heads, d = o.head_size;
  const at::Tensor q =
      plain_linear(x, p, "cross_attention.q").view({kBatch, kSequence, n, d}).transpose(1, 2);
  const at::Tensor kv =
      plain_linear(memory, p, "cross_attention.kv").view({kBatch, kMemory, 2 * g, d});
  const auto part = [&](int64_t begin) {
    return kv.narrow(2, begin, g).transpose(1, 2).repeat_interleave(n / g, 1);
  };
  const double scale = o.scale > 0 ? o.scale : 1 / std::sqrt(static_cast<double>(d));
  const at::Tensor s = (q.matmul(part(0).transpose(2, 3)) * scale)
                           .masked_fill(real_keys(kRealMemory, kMemory).logical_not(),
                                        -std::numeric_limits<double>::infinity());
  const at::Tensor y = at::softmax(s, 3).matmul(part(g)).transpose(1, 2);
  return plain_linear(y.reshape({kBatch * kSequence, n * d}), p, "cross_attention.proj");
}

struct PlainHeads {
  at::Tensor q, k, v; ///< [b, s, heads, size]
};

PlainHeads plain_latent_heads(const at::Tensor& x, const Leaves& p, const LayerCase& c) {
  const AttentionOptions& o = c.options.attention;
  const LatentSizes& s = *o.latent;
  const nn::NormOptions norm{.eps = s.norm_eps, .zero_centered = o.norm_zero_centered};
  at::Tensor q = x;
  if (s.query_rank > 0)
    q = plain_norm(plain_linear(x, p, "attention.q_a"), p, "attention.q_a_norm", norm);
  q = plain_linear(q, p, s.query_rank > 0 ? "attention.q_b" : "attention.q")
          .view({kBatch, kSequence, o.heads, s.plain_size + s.rotary_size});
  const at::Tensor kv_a = plain_linear(x, p, "attention.kv_a");
  const at::Tensor kv =
      plain_linear(plain_norm(kv_a.narrow(1, 0, s.rank), p, "attention.kv_a_norm", norm), p,
                   "attention.kv_b")
          .view({kBatch, kSequence, o.heads, s.plain_size + s.value_size});
  const at::Tensor key =
      plain_rotation(
          kv_a.narrow(1, s.rank, s.rotary_size).view({kBatch, kSequence, 1, s.rotary_size}), c)
          .expand({-1, -1, o.heads, -1});
  const at::Tensor turned = plain_rotation(q.narrow(3, s.plain_size, s.rotary_size), c);
  return {at::cat({q.narrow(3, 0, s.plain_size), turned}, 3),
          at::cat({kv.narrow(3, 0, s.plain_size), key}, 3),
          kv.narrow(3, s.plain_size, s.value_size)};
}

PlainHeads plain_heads(const at::Tensor& x, const Leaves& p, const LayerCase& c) {
  const AttentionOptions& o = c.options.attention;
  if (o.latent) return plain_latent_heads(x, p, c);
  const int64_t n = o.heads, g = o.kv_heads, d = o.head_size;
  const at::Tensor qkv =
      plain_linear(x, p, "attention.qkv").view({kBatch, kSequence, n + 2 * g, d});
  at::Tensor q = qkv.narrow(2, 0, n), k = qkv.narrow(2, n, g);
  const at::Tensor v = qkv.narrow(2, n + g, g);
  if (o.qk_norm != QkNorm::kNone) {
    const nn::NormOptions norm{.eps = o.norm_eps, .zero_centered = o.norm_zero_centered};
    const bool all = o.qk_norm == QkNorm::kProjection;
    const auto normed = [&](const at::Tensor& y, const char* name) {
      return plain_norm(all ? y.flatten(2) : y, p, name, norm).view(y.sizes());
    };
    q = normed(q, "attention.q_norm");
    k = normed(k, "attention.k_norm");
  }
  return {plain_rotation(q, c), plain_rotation(k, c), v};
}

at::Tensor plain_attention(const at::Tensor& x, const Leaves& p, const LayerCase& c) {
  const AttentionOptions& o = c.options.attention;
  const auto [q, k, v] = plain_heads(x, p, c);
  const int64_t n = o.heads, d = o.head_size;
  const auto heads_first = [](const at::Tensor& y) { return y.transpose(1, 2); };
  const auto repeated = [&](const at::Tensor& y) {
    return heads_first(y).repeat_interleave(n / y.size(2), 1);
  };
  const double scale = o.scale > 0 ? o.scale : 1 / std::sqrt(static_cast<double>(d));
  at::Tensor s = heads_first(q).matmul(repeated(k).transpose(2, 3)) * scale;
  if (c.bias) s = s + plain_bias(p.at("relative_bias.weight"), *c.bias);
  at::Tensor seen = at::ones({kSequence, kSequence}, at::kBool);
  if (o.mask == AttentionMask::kCausal) seen = seen.tril();
  if (o.window > 0) seen = seen.logical_and(at::ones_like(seen).triu(1 - o.window));
  seen = seen.logical_and(real_keys(c.real, kSequence));
  s = s.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  if (o.softmax != SoftmaxKind::kVanilla) {
    const at::Tensor sink = o.softmax == SoftmaxKind::kLearnable ? p.at("attention.sinks")
                                                                 : at::zeros({n}, at::kDouble);
    s = at::cat({s, sink.view({1, n, 1, 1}).expand({kBatch, n, kSequence, 1})}, 3);
  }
  const at::Tensor probabilities = at::softmax(s, 3).narrow(3, 0, kSequence);
  const at::Tensor y = heads_first(probabilities.matmul(repeated(v)));
  return plain_linear(y.reshape({kBatch * kSequence, n * v.size(3)}), p, "attention.proj");
}

at::Tensor plain_mlp(const at::Tensor& x, const Leaves& p, const MlpOptions& o) {
  const auto act = [&](const at::Tensor& y) {
    switch (o.activation) {
    case Activation::kGelu:
      return at::gelu(y);
    case Activation::kGeluTanh:
      return at::gelu(y, "tanh");
    case Activation::kSilu:
      return at::silu(y);
    case Activation::kRelu:
      return at::relu(y);
    default:
      return at::relu(y).square();
    }
  };
  const at::Tensor up = plain_linear(x, p, "mlp.fc1");
  const at::Tensor y = o.gated ? act(up.narrow(1, 0, o.ffn)) * up.narrow(1, o.ffn, o.ffn) : act(up);
  return plain_linear(y, p, "mlp.fc2");
}

[[maybe_unused]] at::Tensor plain_layer(const at::Tensor& x, const at::Tensor& memory,
                                        const Leaves& p, const LayerCase& c) {
  const TransformerLayerOptions& o = c.options;
  const auto normed = [&](bool wanted, const at::Tensor& y, const std::string& name) {
    return wanted ? plain_norm(y, p, name, o.norm) : y;
  };
  at::Tensor h = x;
  const auto add = [&](const std::string& name, const auto& branch) {
    const at::Tensor y = branch(normed(o.norm_input, h, name + "_norm"));
    h = normed(o.norm_residual, h + normed(o.norm_output, y, name + "_output_norm"),
               name + "_residual_norm");
  };
  add("attention", [&](const at::Tensor& y) { return plain_attention(y, p, c); });
  if (o.cross)
    add("cross_attention",
        [&](const at::Tensor& y) { return plain_cross(y, memory, p, *o.cross); });
  add("mlp", [&](const at::Tensor& y) { return plain_mlp(y, p, o.mlp); });
  return h;
}

[[maybe_unused]] nn::SequenceLayout layout_of(const LayerCase& c) {
  nn::SequenceLayout layout = nn::SequenceLayout::dense(kBatch, kSequence, {4, 9}, at::kCPU);
  layout.real = c.real;
  return layout;
}
nn::SequenceLayout memory_layout() {
  nn::SequenceLayout layout = nn::SequenceLayout::dense(kBatch, kMemory, {4, 9}, at::kCPU);
  layout.real = kRealMemory;
  return layout;
}

[[maybe_unused]] at::Tensor input_x() {
  return randn({kBatch * kSequence, kHidden}, 1);
}
[[maybe_unused]] at::Tensor input_memory(const LayerCase& c) {
  const int64_t width = c.options.cross ? c.options.cross->memory : 0;
  return randn({kBatch * kMemory, width > 0 ? width : kHidden}, 3);
}
[[maybe_unused]] at::Tensor input_dy() {
  return randn({kBatch * kSequence, kHidden}, 2);
}

struct Layer {
  Layer(const LayerCase& c, const parallel::TensorParallel& tp, at::ScalarType dtype = at::kDouble)
      : test_case(c), scope(params, dtype, {{"tp", {tp.rank(), tp.size()}}}),
        bias(c.bias ? std::make_shared<RelativeBias>(scope / "relative_bias", *c.bias, tp)
                    : nullptr),
        layer(scope, c.options, tp, rotary(c, dtype), bias), store(params, at::kCPU) {
    for (nn::Param& param : params) nn::load_global(param, value_of(param).to(dtype));
  }
  /// Of {x, memory}.
  at::Tensor forward(const std::vector<at::Tensor>& in, const nn::ForwardContext& ctx) const {
    return test_case.options.cross ? layer.forward(in[0], in[1], memory, ctx)
                                   : layer.forward(in[0], ctx);
  }
  static std::shared_ptr<const RotaryTable> rotary(const LayerCase& c, at::ScalarType dtype) {
    if (c.rotary_dim == 0) return std::make_shared<RotaryTable>();
    return std::make_shared<RotaryTable>(RotaryTable::make(
        {.rotary_dim = c.rotary_dim}, c.interleaved, kSequence, nn::acc_dtype(dtype), at::kCPU));
  }
  /// The same in every layout.
  static at::Tensor value_of(const nn::Param& param) {
    return randn(param.spec().shape, std::hash<std::string>{}(param.name()) % 1000) * 0.5;
  }

  LayerCase test_case;
  nn::SequenceLayout memory = memory_layout();
  nn::ParamList params;
  nn::Scope scope;
  std::shared_ptr<const RelativeBias> bias;
  TransformerLayer layer;
  nn::ResidentStore store;
};

class LayerTest : public testing::TestWithParam<LayerCase> {};

} // namespace
} // namespace pentatron::layers
