/// The orthogonal factor of a matrix by Newton-Schulz iterations: products of matrices alone.
#pragma once

#include <array>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/optim/optimizer_config.h"

namespace pentatron::optim {

/// One iteration: x = (a + b x x^T + c (x x^T)^2) x.
using Quintic = std::array<double, 3>;

/// The polynomials of `steps` iterations. Sources: Jordan et al. 2024 (kellerjordan.github.io,
/// "Muon") for kSimple; Amsel et al. 2025 (arXiv:2505.16932) for kPolarExpress, whose last
/// polynomial is repeated.
std::vector<Quintic> quintics(MuonCoefficients type, int64_t steps);

/// About U V^T of x = U S V^T, for every matrix of a stack.
///   x [..., rows, columns]; divided by max(|x|_F, eps) first
/// Works on the smaller side; a matrix that is much longer than broad meets its long side twice,
/// and not in each iteration.
at::Tensor orthogonalized(const at::Tensor& x, const std::vector<Quintic>& polynomials, double eps);

} // namespace pentatron::optim
