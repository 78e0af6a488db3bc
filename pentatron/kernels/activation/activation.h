/// Activation functions of an MLP, plain or gated, with an optional fused bias.
///
/// Shapes, r = rows, f = cols:
///   plain   x [r, f],        bias [f]   -> y [r, f] = act(x + b)
///   gated   x [r, 2f] (gate|up), bias [2f] -> y [r, f] = act(gate + b_gate) * (up + b_up)
///   gated with GateOptions, g and u with bias: act(min(g, limit)) * (clamp(u, limit) + up_offset),
///     as in GPT-OSS; what was clamped has no gradient
///   row_scale [r] of acc_dtype(dtype): y's rows times it, before they are rounded
///   backward: dy [r, f] and the x of the forward -> dx of x's shape (may be x itself: in place);
///     dbias [f or 2f] of acc_dtype(dtype) += column sums of dx before its rounding;
///     drow_scale [r] of acc_dtype(dtype) = row sums of dy times the y without row_scale
/// Functions: gelu x Phi(x); gelu_tanh 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); quick_gelu
/// x sigmoid(1.702 x);
///   relu; squared_relu max(x, 0)^2; silu x sigmoid(x). Gated silu is SwiGLU, gated gelu is GeGLU.
/// Arithmetic is in the accumulate type. fp64 uses libm. SIMD: the logistic function has a relative
/// error below 3e-7 and Phi below 4.5e-7 over the whole range of float where the result is normal.
/// Deterministic: the result does not depend on the number of threads.
/// Source: Hendrycks & Gimpel 2016 (arXiv:1606.08415); Shazeer 2020 (arXiv:2002.05202); So et al.
/// 2021 (arXiv:2109.08668).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

enum class Activation : uint8_t { kGelu, kGeluTanh, kQuickGelu, kRelu, kSquaredRelu, kSilu };

std::string_view name(Activation a);

/// Of gated ones.
struct GateOptions {
  double limit = std::numeric_limits<double>::infinity(); ///< positive
  double up_offset = 0;
  bool operator==(const GateOptions&) const = default;
};

struct ActivationForward {
  Activation kind = Activation::kGelu;
  bool gated = false;
  GateOptions gate = {};
  DType dtype = DType::kFloat32;
  DType bias_dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0; ///< f: columns of y
  const void* x = nullptr;
  const void* bias = nullptr;      ///< null: none
  const void* row_scale = nullptr; ///< null: 1
  void* y = nullptr;               ///< plain: may be x
  int64_t x_stride = 0;            ///< elements from row to row; 0: packed
  int64_t y_stride = 0;
};

struct ActivationBackward {
  Activation kind = Activation::kGelu;
  bool gated = false;
  GateOptions gate = {};
  DType dtype = DType::kFloat32;
  DType bias_dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* bias = nullptr;
  const void* row_scale = nullptr;
  void* dx = nullptr;         ///< may be x; plain: may be dy
  void* dbias = nullptr;      ///< null: not wanted
  void* drow_scale = nullptr; ///< null: not wanted
  int64_t dy_stride = 0;
  int64_t x_stride = 0;
  int64_t dx_stride = 0;
};

/// Throws ShapeError if sizes are negative or a needed pointer is missing.
void activation_forward(const ActivationForward& args, const Context& context = {});
void activation_backward(const ActivationBackward& args, const Context& context = {});

/// Scratch for the partial sums of dbias. On the CPU a smaller workspace is allowed: the kernel
/// allocates.
size_t workspace_bytes(const ActivationBackward& args);

std::span<const Entry<ActivationForward>> activation_forward_entries();
std::span<const Entry<ActivationBackward>> activation_backward_entries();

} // namespace pentatron::kernels
