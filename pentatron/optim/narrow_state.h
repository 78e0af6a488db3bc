/// Running means in bf16, fp16 and FP8.
///
/// A mean whose decay is finer than its type can follow is rounded up or down by chance, so that it
/// follows on average; the random numbers depend on the parameter, the state, the step and the
/// element alone, so every layout draws the same.
///
/// fp16 and FP8 numbers are stored as scale * value, with one scale for a parameter. The scale is
/// the largest power of two with which a bound of the mean still fits, so that another scale rounds
/// nothing again (but at the small end of the type). FP8 stores the root of a mean of squares: the
/// type has a range of 2^17, which is small for squares. In both types a mean of squares above zero
/// stays above zero, because an update is divided by its root.
///
/// The bound follows the largest gradient as the mean follows the gradient: |m| <= b, but for
/// rounding, with b = decay b + gain max|g|. A maximum over all ranks depends on no layout, so
/// neither do the scales; they are known before the pass over the elements, which needs to be made
/// only once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/nn/shard_spec.h"

namespace pentatron::optim {

/// Whether means of this type are stored with a scale.
bool is_scaled(at::ScalarType dtype);

/// Whether the type holds roots, for a mean of squares.
bool stores_root(at::ScalarType dtype, bool squared);

/// Whether rounding to the nearest would keep a mean from decreasing: one that decays by less than
/// half a unit of its last place in a step. Means of squares, whose errors change the length of
/// every update, are to decay by at least two units.
bool rounds_by_chance(double decay, at::ScalarType dtype, bool squared);

/// Of a mean whose absolute value is at most `bound`; 1 for types without scales. `root`: the scale
/// of its root.
double state_scale(double bound, at::ScalarType dtype, bool root = false);

/// The smallest number above zero of a mean with this bound, in a type with scales.
double smallest_state(double bound, at::ScalarType dtype);

/// wide = stored / scale, squared if it is a root.
void widen_into(const at::Tensor& wide, const at::Tensor& stored, double scale, bool root);
/// The same in a new tensor of the type `acc`.
at::Tensor widened(const at::Tensor& stored, double scale, at::ScalarType acc, bool root = false);

/// stored = scale value, or scale root(value) where the type holds roots of means of squares,
/// rounded to the nearest; what is too large becomes the largest number.
void store_narrow(const at::Tensor& stored, const at::Tensor& value, double scale,
                  bool squared = false);

/// What random numbers depend on.
struct Chance {
  std::string name; ///< "<parameter>/<state>"
  int64_t step = 0;
  std::vector<nn::GlobalRuns> runs; ///< the numbers of the elements
};
/// store_narrow() in any narrow type, but rounded up or down by chance: on average what is stored
/// stands for the value. Elements in no run keep what they have.
void store_by_chance(const at::Tensor& stored, const at::Tensor& value, double scale, bool squared,
                     const Chance& chance);

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
