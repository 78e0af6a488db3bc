/// Descriptions of the fields of a config struct: one list, which is used for YAML, overrides,
/// help, diff and the JSON schema.
///
///   enum class NormKind { kLayerNorm, kRms };
///   // Found by argument-dependent lookup; the first name of a value is the one that is written.
///   constexpr auto enum_names(NormKind) {
///     return std::array{config::name(NormKind::kLayerNorm, "layernorm"),
///                       config::name(NormKind::kRms, "rmsnorm")};
///   }
///   struct ModelConfig {
///     int64_t num_layers = 12;
///     std::optional<int64_t> kv_channels = {};     // YAML: null
///     NormKind norm = NormKind::kRms;
///     RopeConfig rope;                             // a nested section
///
///     static constexpr auto fields() {
///       using C = ModelConfig;
///       return std::tuple{
///           config::field("num_layers", &C::num_layers, "transformer layers").min(1),
///           config::field("kv_channels", &C::kv_channels, "head size").positive(),
///           config::field("norm", &C::norm, "normalisation"),
///           config::field("rope", &C::rope, "rotary positions")};
///     }
///     // Optional: rules between fields. `path` is this section's dotted path.
///     void validate(config::Violations& violations, std::string_view path) const;
///   };
///
/// Field types: bool, integers, float, double, std::string, enum class with enum_names,
/// std::optional and std::vector of these, nested structs with fields(). Constraints hold for the
/// value inside an optional and for every element of a list. They are checked by
/// config::validate(), after all assignments, so an override can repair a file.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "pentatron/config/violations.h"

namespace pentatron::config {

/// One spelling of one value of an enum.
template <class E> struct EnumName {
  E value;
  std::string_view name;
};
template <class E> constexpr EnumName<E> name(E value, std::string_view name) {
  return {value, name};
}

/// The first name of `value`, as configs spell it; empty for a value without one.
template <class E> constexpr std::string_view to_string(E value) {
  for (const auto& entry : enum_names(E{})) {
    if (entry.value == value) return entry.name;
  }
  return {};
}

/// The value called `text`, if one is.
template <class E> constexpr std::optional<E> from_string(std::string_view text) {
  for (const auto& entry : enum_names(E{})) {
    if (entry.name == text) return entry.value;
  }
  return std::nullopt;
}

/// The effect of a changed value on a run that resumes from a checkpoint.
enum class OnResume : uint8_t {
  kInherited, ///< the value of the field's section; at the top level: kTold
  kTold,      ///< the run continues with the new value, and the log reports it
  kModel,     ///< decides which tensors the model has and what they mean
  kState,     ///< decides what is saved in addition to the weights
  kData,      ///< decides which samples come when and which numbers are drawn
  kIgnored    ///< changes no result: where results are written, how a run is shown and watched
};

/// Bounds and words of a field; numbers are in the field's own unit.
struct FieldTraits {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
  bool max_excluded = false;
  int64_t multiple_of = 1;
  bool not_empty = false; ///< strings and lists
  bool or_one = false;    ///< a list that may be given as its only element
  std::string_view unit;
  OnResume on_resume = OnResume::kInherited;
  bool of_task = false;
  bool selects_variant = false;     ///< an enum whose value decides which fields the section has
  uint32_t variants = ~uint32_t{0}; ///< bits of the values for which the section has this field
  std::string_view needs; ///< an enum of the section, without some of whose values it has no effect
  uint32_t needed = ~uint32_t{0}; ///< bits of those with which it has one
};

template <class C, class T> struct Field {
  std::string_view name;
  T C::*member;
  std::string_view help;
  FieldTraits traits;

  constexpr Field min(double bound) const {
    Field f = *this;
    f.traits.min = bound;
    return f;
  }
  constexpr Field max(double bound) const {
    Field f = *this;
    f.traits.max = bound;
    return f;
  }
  /// low <= value <= high.
  constexpr Field range(double low, double high) const { return min(low).max(high); }
  constexpr Field more_than(double bound) const {
    Field f = min(bound);
    f.traits.min_excluded = true;
    return f;
  }
  constexpr Field less_than(double bound) const {
    Field f = max(bound);
    f.traits.max_excluded = true;
    return f;
  }
  constexpr Field positive() const { return more_than(0); }
  constexpr Field non_negative() const { return min(0); }
  /// 1 to 2^30: two of them can be multiplied in 64 bits.
  constexpr Field size() const { return range(1, 0x1p30); }
  constexpr Field multiple_of(int64_t n) const {
    Field f = *this;
    f.traits.multiple_of = n;
    return f;
  }
  constexpr Field not_empty() const {
    Field f = *this;
    f.traits.not_empty = true;
    return f;
  }
  /// A list: one value without brackets is a list of one.
  constexpr Field or_one() const {
    Field f = *this;
    f.traits.or_one = true;
    return f;
  }
  /// What the number counts: "tokens", "s", "bytes".
  constexpr Field unit(std::string_view text) const {
    Field f = *this;
    f.traits.unit = text;
    return f;
  }
  /// The section has the fields of this enum's value; see only_for().
  constexpr Field selects_variant() const {
    Field f = *this;
    f.traits.selects_variant = true;
    return f;
  }
  /// The section has this field for these values of the field that selects the variant, and else
  /// neither takes nor shows it.
  template <class... E> constexpr Field only_for(E... values) const {
    Field f = *this;
    f.traits.variants = ((uint32_t{1} << static_cast<unsigned>(values)) | ...);
    return f;
  }
  /// The field has no effect unless the section's enum `other` has one of these values. Otherwise
  /// it takes only its default, and is not shown.
  template <class... E> constexpr Field only_with(std::string_view other, E... values) const {
    Field f = *this;
    f.traits.needs = other;
    f.traits.needed = ((uint32_t{1} << static_cast<unsigned>(values)) | ...);
    return f;
  }
  /// Of a section: holds for its fields that say nothing themselves.
  constexpr Field on_resume(OnResume meaning) const {
    Field f = *this;
    f.traits.on_resume = meaning;
    return f;
  }
  /// The value belongs to what a model is trained for, such as its classes: a run that starts from
  /// the weights of a model for another task has another one.
  constexpr Field of_task() const {
    Field f = *this;
    f.traits.of_task = true;
    return f;
  }
};

/// Describes one member. `name` is its key. `help` is one phrase without a full stop that can be
/// understood alone.
template <class C, class T>
constexpr Field<C, T> field(std::string_view name, T C::*member, std::string_view help) {
  return {name, member, help, {}};
}

} // namespace pentatron::config
