/// A parameter: its ShardSpec, the rank's value, and the one way for gradients to reach it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "pentatron/base/philox.h"
#include "pentatron/nn/adapter.h"
#include "pentatron/nn/cost.h"
#include "pentatron/nn/fp8_weight.h"
#include "pentatron/nn/int8_weight.h"
#include "pentatron/nn/low_precision.h"
#include "pentatron/nn/shard_spec.h"

namespace pentatron::nn {

/// What the elements are before training. Numbers come from Stream(seed, "init/" + name), indexed
/// by the global element.
struct Init {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  double value = 0; ///< the constant, the standard deviation, or the bound of (-value, value)

  static Init constant(double c) { return {Kind::kConstant, c}; }
  static Init normal(double std) { return {Kind::kNormal, std}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound}; }
};

/// Whose data-parallel ranks hold addends of a gradient: those with the same dense layers, or those
/// with the same experts.
enum class ReductionGroup : uint8_t { kDense, kExpert };

/// What a weight multiplies in the products that cost.h counts: the tokens of its segment, those of
/// the memory (cross-attention), or those whose logits a loss needs.
enum class ProductRows : uint8_t { kNone, kTokens, kMemory, kLogits };

/// What decides how a parameter is stored, reduced and updated. A bucket holds one family.
struct ParamFamily {
  ReductionGroup group = ReductionGroup::kDense;
  at::ScalarType dtype = at::kFloat;
  bool trainable = true; ///< false: a value alone, no gradient, no state of the optimizer
  std::string rule;      ///< of the optimizer; empty: the one of its configuration
  bool whole = false;    ///< the optimizer needs all elements of the rank's tensor together
  bool operator==(const ParamFamily&) const = default;
};

/// Type of gradients, statistics and optimizer state for a model of the given type: fp64 for fp64,
/// else fp32.
at::ScalarType acc_dtype(at::ScalarType dtype);

/// Values never require grad: every use goes through an operator of pentatron whose backward calls
/// accumulate(). A use is counted in the forward pass and paid back by its accumulation; at zero
/// outstanding uses `on_ready` fires.
class Param {
 public:
  /// `segment`: the number of the segment that registers it.
  Param(ShardSpec spec, Init init, at::ScalarType dtype, const Coordinates& where,
        int64_t segment = 0);
  Param(const Param&) = delete;
  Param& operator=(const Param&) = delete;

  const std::string& name() const { return spec_.name; }
  const ShardSpec& spec() const { return spec_; }
  const Coordinates& where() const { return where_; }
  const std::vector<int64_t>& shape() const { return shape_; } ///< of the rank's tensor
  int64_t numel() const;
  at::ScalarType dtype() const { return dtype_; }

  /// Numbers of the segments whose passes read the value. Tied weights have several.
  const std::vector<int64_t>& segments() const { return segments_; }
  void used_by(int64_t segment);

  /// The rank's tensor. Defined once a ParamStore has given it storage.
  const at::Tensor& value() const { return value_; }
  /// The values used in products: value() or, for an 8-bit weight, a dequantized copy.
  at::Tensor dense_value() const;
  /// dense_value() of one of several matrices [e, out, in], or of some rows of a matrix.
  at::Tensor dense_matrix(int64_t matrix) const;
  at::Tensor dense_rows(int64_t first, int64_t count) const;
  /// Sum of the gradients since the store last took or cleared them, in acc_dtype, same shape. A
  /// store that lends the memory for a while only (ZeRO-2) does so in `need_main_grad`.
  const at::Tensor& main_grad() const;
  /// main_grad() for an operator that adds a gradient of all elements. If `empty`, the tensor has
  /// no valid contents, and the operator writes the gradient instead of adding to it.
  struct Sum {
    at::Tensor tensor;
    bool empty = false;
  };
  Sum sum_to_write();
  /// Calls main_grad() of each parameter, and clears those that need it at once.
  static void define_sums(const std::vector<Param*>& params);
  /// Sets the sum to zero. Its memory is cleared on the next call of main_grad(), unless it has
  /// been written before.
  void clear_main_grad() { empty_ = main_grad_.defined(); }
  /// An undefined tensor means that the parameter has no storage at the moment.
  void set_value(at::Tensor value);
  void set_main_grad(at::Tensor main_grad);
  std::function<void(Param&)> need_main_grad;

  /// Fills value by global index; padding rows become zero.
  void initialize(uint64_t seed);

  /// For a parameter with in_int8: provides a value while `fill` runs, then stores it in 8 bits.
  /// Throws ConfigError if the rank holds a part of a block of columns.
  void write_int8(at::Device device, const std::function<void(Param&)>& fill);
  /// For a parameter with in_int8: provides the value while `visit` runs.
  void read_int8(const std::function<void(Param&)>& visit);

  /// In place of a value: the codes that the products of a weight in low precision multiply, from
  /// the store. Null if no codes are available at the moment.
  const Fp8Weight* fp8() const { return fp8_.get(); }
  void set_fp8(std::shared_ptr<const Fp8Weight> codes) { fp8_ = std::move(codes); }

  /// Whether it is the weight of a linear layer inside a layer of the model: its products may be in
  /// low precision.
  bool linear = false;
  std::optional<LowPrecision> low_precision; ///< of its products; none: in the type of the model
  /// In the last of the segments that read it.
  ProductRows multiplies = ProductRows::kNone;
  double share_multiplied = 1; ///< of its elements by each row: of experts, the chosen ones

  /// Its family; to be set before a ParamStore gives it storage.
  ReductionGroup group = ReductionGroup::kDense;
  bool trainable = true;
  /// Held in 8 bits instead of dtype(): frozen, and without storage of a ParamStore.
  bool in_int8 = false;
  std::string rule;
  bool whole = false;
  double lr_scale = 1; ///< multiplies the learning rate
  /// Part of an adapter: it is trained with a frozen base (nn/adapter.h).
  bool adapter = false;
  /// Which layers take adapters beside it, as bits of AdaptedUse; a word table may have two.
  uint8_t adaptable = 0;
  /// Of the model, and trained and stored with the adapters beside it.
  bool with_adapters = false;
  /// Of an embedding table: the global row whose lookups add no gradient; -1: none.
  int64_t padding_row = -1;
  ParamFamily family() const { return {group, dtype_, trainable, rule, whole}; }

  /// A forward pass that will accumulate one gradient announces it here.
  void add_use() { ++outstanding_uses_; }
  int outstanding_uses() const { return outstanding_uses_; }

  /// main_grad += grad, and one use is paid back.
  void accumulate(const at::Tensor& grad);
  /// One use is paid back by a kernel that has added to main_grad itself.
  void accumulated();
  std::function<void(Param&)> on_ready; ///< all uses of the forward passes so far are paid back

 private:
  ShardSpec spec_;
  Init init_;
  at::ScalarType dtype_;
  Coordinates where_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> segments_;
  at::Tensor value_, main_grad_;
  std::shared_ptr<const Int8Weight> int8_;
  std::shared_ptr<const Fp8Weight> fp8_;
  mutable bool empty_ = false; ///< main_grad_ is zero, whatever its memory holds
  int outstanding_uses_ = 0;
};

/// The parameters of a model on one rank, in order of registration. Addresses are stable.
///
/// Also holds buffers: values of a model without a gradient, such as the bias by which a router
/// balances its experts. All data-parallel ranks hold them whole, in acc_dtype of the model; stores
/// and optimizers do not know them, checkpoints and exports do. `trainable`: steps change it.
class ParamList {
 public:
  Param& add(ShardSpec spec, Init init, at::ScalarType dtype, const Coordinates& where,
             int64_t segment = 0);
  Param& find(const std::string& name);
  Param* find_or_null(const std::string& name);
  auto begin() { return params_.begin(); }
  auto end() { return params_.end(); }
  auto begin() const { return params_.begin(); }
  auto end() const { return params_.end(); }
  size_t size() const { return params_.size(); }

  /// `dtype`: of the model.
  Param& add_buffer(ShardSpec spec, Init init, at::ScalarType dtype, const Coordinates& where,
                    int64_t segment = 0);
  std::deque<Param>& buffers() { return buffers_; }
  const std::deque<Param>& buffers() const { return buffers_; }
  /// Gives storage to the buffers, with their first values.
  void make_buffers(at::Device device);

 private:
  std::deque<Param> params_, buffers_;
};

/// Of a forward pass with the whole weight, the products that cost.h counts; `shape`: of the
/// segment that makes them.
double product_flops(const Param& weight, const LayerShape& shape);

/// Copies a true (global) tensor into the rank's parameter, and back into a global tensor that
/// holds zeros elsewhere.
void load_global(Param& param, const at::Tensor& global);
void store_global(const Param& param, const at::Tensor& local, at::Tensor& global);

} // namespace pentatron::nn
