/// Running means in fp16 and FP8: numbers that are stored as scale * value, with one scale for a
/// parameter. The scale is the largest power of two with which a bound of the mean still fits, so
/// that another scale rounds nothing again (but at the small end of the type).
///
/// The bound follows the largest gradient as the mean follows the gradient: |m| <= b at all times
/// with b = decay b + gain max|g|. A maximum over all ranks depends on no layout, so neither do the
/// scales; they are known before the pass over the elements, which needs to be made only once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"

namespace pentatron::optim {

/// Whether means of this type are stored with a scale.
bool is_scaled(at::ScalarType dtype);

/// Of a mean whose absolute value is at most `bound`; 1 for types without scales.
double state_scale(double bound, at::ScalarType dtype);

/// stored / scale, in the type `acc`; a copy.
at::Tensor widened(const at::Tensor& stored, double scale, at::ScalarType acc);

/// stored = scale value, rounded to the nearest; what is too large becomes the largest number.
void store_narrow(const at::Tensor& stored, const at::Tensor& value, double scale);

/// The bounds of the means of all ranks' parameters, by "<parameter>/<state>": the same everywhere.
class StateBounds {
 public:
  using Bounds = std::map<std::string, double>;
  StateBounds() = default;
  /// `own`: the names of this rank. Collective over the world.
  StateBounds(const std::vector<std::string>& own, comm::Group world);

  bool empty() const { return bounds_.empty(); }
  double of(const std::string& name) const;
  void set(const std::string& name, double bound);
  const Bounds& all() const { return bounds_; }
  /// The largest value of any rank for every name; ranks may lack some. Collective over the world.
  Bounds largest(const Bounds& own) const;

 private:
  Bounds bounds_;
  comm::Group world_;
};

} // namespace pentatron::optim
