/// How modules name and register their parameters.
#pragma once

#include <string>
#include <vector>

#include "pentatron/nn/adapter.h"
#include "pentatron/nn/param.h"

namespace pentatron::nn {

/// A place in the tree of modules: (scope / "attention").param("qkv.weight", ...) registers
/// layers.0.attention.qkv.weight.
class Scope {
 public:
  /// `segment`: the number of the segment that the parameters belong to.
  Scope(ParamList& params, at::ScalarType dtype, Coordinates where, std::string prefix = "",
        int64_t segment = 0)
      : params_(&params), dtype_(dtype), where_(std::move(where)), prefix_(std::move(prefix)),
        segment_(segment) {}

  Scope operator/(const std::string& name) const {
    Scope scope = *this;
    scope.prefix_ = join(name);
    return scope;
  }
  /// The same place for parameters that lie along other axes: those of experts.
  Scope at(Coordinates where) const {
    Scope scope = *this;
    scope.where_ = std::move(where);
    return scope;
  }
  Scope of_segment(int64_t segment) const {
    Scope scope = *this;
    scope.segment_ = segment;
    return scope;
  }
  /// Linear layers below get these adapters; null: none. The plan outlives the construction.
  Scope with_adapters(const AdapterPlan* adapters) const {
    Scope scope = *this;
    scope.adapters_ = adapters;
    return scope;
  }
  const AdapterPlan* adapters() const { return adapters_; }
  /// Linear layers below hold these adapters too, of which each row of a pass may take one.
  Scope with_variants(const std::vector<AdapterPlan>* variants) const {
    Scope scope = *this;
    scope.variants_ = variants;
    return scope;
  }
  const std::vector<AdapterPlan>* variants() const { return variants_; }
  /// A parameter that several pipeline ranks hold, of which this one is at `position`; one holder:
  /// like any other. `spec.name` is replaced by the full name.
  Param& shared_param(const std::string& name, ShardSpec spec, Init init,
                      AxisPosition position) const {
    const std::string axis = shared_axis(join(name));
    spec.placements[axis] = Placement::partial();
    Scope scope = *this;
    scope.where_[axis] = position;
    return scope.param(name, std::move(spec), init);
  }
  /// `spec.name` is replaced by the full name.
  Param& param(const std::string& name, ShardSpec spec, Init init) const {
    spec.name = join(name);
    return params_->add(std::move(spec), init, dtype_, where_, segment_);
  }
  /// See ParamList. `spec.name` is replaced by the full name.
  Param& buffer(const std::string& name, ShardSpec spec, Init init) const {
    spec.name = join(name);
    return params_->add_buffer(std::move(spec), init, dtype_, where_, segment_);
  }
  /// A parameter of one dimension that every rank holds.
  Param& vector(const std::string& name, int64_t size, Init init) const {
    return param(name, {.name = {}, .shape = {size}}, init);
  }

  at::ScalarType dtype() const { return dtype_; }
  const std::string& prefix() const { return prefix_; }

 private:
  std::string join(const std::string& name) const {
    return prefix_.empty() ? name : prefix_ + "." + name;
  }

  ParamList* params_;
  at::ScalarType dtype_;
  Coordinates where_;
  std::string prefix_;
  int64_t segment_;
  const AdapterPlan* adapters_ = nullptr;
  const std::vector<AdapterPlan>* variants_ = nullptr;
};

} // namespace pentatron::nn
