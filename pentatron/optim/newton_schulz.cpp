#include "pentatron/optim/newton_schulz.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "pentatron/base/error.h"
#include "pentatron/nn/ops/matmul.h"

namespace pentatron::optim {

namespace {

constexpr Quintic kSimple[] = {{3.4445, -4.7750, 2.0315}};
constexpr Quintic kQuintic[] = {{4.0848, -6.8946, 2.9270},
                                {3.9505, -6.3029, 2.6377},
                                {3.7418, -5.5913, 2.3037},
                                {2.8769, -3.1427, 1.2046},
                                {2.8366, -3.0525, 1.2012}};
/// Algorithm 1 of the paper; all but the last are made for arguments 1 % larger.
constexpr Quintic kPolarExpress[] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                     {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                     {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                     {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                     {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
                                     {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
                                     {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
                                     {1.875, -1.25, 0.375}};
constexpr double kSafety = 1.01;

std::vector<Quintic> polar_express(int64_t steps) {
  const std::span<const Quintic> known(kPolarExpress);
  std::vector<Quintic> all;
  for (int64_t i = 0; i < steps; ++i) {
    const size_t at = std::min(static_cast<size_t>(i), known.size() - 1);
    auto [a, b, c] = known[at];
    if (at + 1 < known.size()) {
      a /= kSafety;
      b /= std::pow(kSafety, 3);
      c /= std::pow(kSafety, 5);
    }
    all.push_back({a, b, c});
  }
  return all;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  const at::Tensor out = at::empty(sizes, a.options());
  nn::multiply_into(out, a, b);
  return out;
}

/// x + value I, in place.
const at::Tensor& add_identity(const at::Tensor& x, double value) {
  x.diagonal(0, -2, -1).add_(value);
  return x;
}

/// a I + b g + c g g, of symmetric matrices.
at::Tensor polynomial(const at::Tensor& g, const Quintic& p) {
  return add_identity(nn::symmetric_product(g, add_identity(g * p[2], p[1])), p[0]);
}

/// Whether the iteration may run on x x^T alone. What rounding leaves of its zero eigenvalues grows
/// by a^2 in each step and, unlike that of a product with its transpose, may be negative: there the
/// polynomials exceed a, and soon all bounds.
bool stays_small_on_squares(at::ScalarType type, const std::vector<Quintic>& polynomials) {
  constexpr double kSmall = 0.005;
  double noise = type == at::kDouble ? 0x1p-53 : 0x1p-24;
  for (size_t k = 0; k + 1 < polynomials.size(); ++k)
    noise *= polynomials[k][0] * polynomials[k][0];
  return noise < kSmall;
}

/// Whether that is less work: products of rows^3 for those of rows^2 columns.
bool pays_to_iterate_on_squares(const at::Tensor& x, size_t steps) {
  const auto r = static_cast<double>(x.size(-2)), c = static_cast<double>(x.size(-1));
  const auto n = static_cast<double>(steps);
  const double symmetric = x.is_cpu() ? 0.5 : 1; // the operations of such a product
  return (1 + symmetric) * c + (4 * n - 3) * symmetric * r <
         n * ((1 + symmetric) * c + symmetric * r);
}

} // namespace

std::vector<Quintic> quintics(MuonCoefficients type, int64_t steps) {
  if (type == MuonCoefficients::kPolarExpress) return polar_express(steps);
  const bool simple = type == MuonCoefficients::kSimple;
  const std::span<const Quintic> known =
      simple ? std::span<const Quintic>(kSimple) : std::span<const Quintic>(kQuintic);
  std::vector<Quintic> all;
  for (int64_t i = 0; i < steps; ++i) all.push_back(known[static_cast<size_t>(i) % known.size()]);
  return all;
}

at::Tensor orthogonalized(const at::Tensor& input, const std::vector<Quintic>& polynomials,
                          double eps) {
  PT_DCHECK(input.dim() >= 2);
  const int64_t rows = input.size(-2), columns = input.size(-1);
  if (rows > columns)
    return orthogonalized(input.transpose(-2, -1), polynomials, eps).transpose(-2, -1);
  const int64_t stack = input.numel() / (rows * columns);
  at::Tensor x =
      stack == 1 ? input.reshape({rows, columns}) : input.reshape({stack, rows, columns});
  const at::Tensor norm = at::linalg_vector_norm(x, 2, at::IntArrayRef({-2, -1}), /*keepdim=*/true);
  x = x / norm.clamp_min(eps);
  // In bf16 what is small beside the largest singular value would vanish in the square.
  if (x.scalar_type() == at::kBFloat16 || !stays_small_on_squares(x.scalar_type(), polynomials) ||
      !pays_to_iterate_on_squares(x, polynomials.size())) {
    for (const Quintic& p : polynomials) {
      at::Tensor q = nn::symmetric_product(x, x.transpose(-2, -1));
      q = polynomial(q, p);
      x = product(q, x);
    }
    return x.view(input.sizes());
  }
  // x_k = q_k x, and q_k commutes with g = x x^T: x_k x_k^T = q_k^2 g.
  at::Tensor g = nn::symmetric_product(x, x.transpose(-2, -1)), q;
  for (size_t k = 0; k < polynomials.size(); ++k) {
    const at::Tensor p = polynomial(g, polynomials[k]);
    q = k == 0 ? p : nn::symmetric_product(p, q);
    if (k + 1 < polynomials.size()) g = nn::symmetric_product(nn::symmetric_product(p, g), p);
  }
  return product(q, x).view(input.sizes());
}

} // namespace pentatron::optim
