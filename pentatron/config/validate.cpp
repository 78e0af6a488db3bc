#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/config/config.h"
#include "pentatron/config/paths.h"
#include "pentatron/config/value.h"

namespace pentatron::config::detail {

namespace {

bool within(const FieldTraits& t, double v) {
  if (!std::isfinite(v)) return false;
  const bool above = t.min_excluded ? v > t.min : v >= t.min;
  const bool below = t.max_excluded ? v < t.max : v <= t.max;
  return (above || std::isinf(t.min)) && (below || std::isinf(t.max));
}

bool is_multiple(const FieldTraits& t, int64_t v) {
  return t.multiple_of <= 1 || v % t.multiple_of == 0;
}

bool satisfies(const FieldTraits& traits, const Value& value) {
  if (const auto* v = std::get_if<int64_t>(&value.data)) {
    return within(traits, static_cast<double>(*v)) && is_multiple(traits, *v);
  }
  if (const auto* v = std::get_if<double>(&value.data)) return within(traits, *v);
  if (const auto* v = std::get_if<std::string>(&value.data))
    return !(traits.not_empty && v->empty());
  if (const auto* v = std::get_if<std::vector<Value>>(&value.data)) {
    return !(traits.not_empty && v->empty()) &&
           std::ranges::all_of(*v, [&](const Value& item) { return satisfies(traits, item); });
  }
  return true;
}

/// The integer nearest to `v` that satisfies the traits, if there is one.
std::optional<int64_t> nearest_integer(const FieldTraits& t, int64_t v) {
  const int64_t step = std::max<int64_t>(1, t.multiple_of);
  double bounded = std::clamp(static_cast<double>(v), t.min, std::max(t.min, t.max));
  bounded = std::clamp(bounded, -0x1p53, 0x1p53);
  const auto base = static_cast<int64_t>(std::floor(bounded / static_cast<double>(step)));
  std::optional<int64_t> best;
  for (int64_t k = base - 2; k <= base + 2; ++k) {
    const int64_t candidate = k * step;
    if (!within(t, static_cast<double>(candidate))) continue;
    if (!best || std::abs(candidate - v) < std::abs(*best - v)) best = candidate;
  }
  return best;
}

/// A value of the same type that satisfies the traits and is near; empty where none is known.
std::string suggestion(const TypeInfo& type, const FieldTraits& traits, const Value& value,
                       const Value& default_value) {
  if (const auto* v = std::get_if<int64_t>(&value.data); v != nullptr && type.kind != Kind::kEnum) {
    // A large maximum may be more than any machine has; a small one counts kinds of something.
    constexpr double kSmall = 16;
    if (static_cast<double>(*v) > traits.max && traits.max > kSmall &&
        std::holds_alternative<int64_t>(default_value.data) && satisfies(traits, default_value))
      return format_value(type, default_value);
    // Nothing, where that is allowed: `window_size=0` means no window.
    if (*v <= 0 && std::holds_alternative<std::monostate>(default_value.data)) return "null";
    if (const auto nearest = nearest_integer(traits, *v)) return fmt::to_string(*nearest);
  }
  if (std::holds_alternative<double>(default_value.data) && satisfies(traits, default_value))
    return format_value(type, default_value);
  if (const auto* v = std::get_if<double>(&value.data); v != nullptr && !std::isnan(*v)) {
    const double bound = std::clamp(*v, traits.min, std::max(traits.min, traits.max));
    if (within(traits, bound)) return format_number(bound);
  }
  if (satisfies(traits, default_value)) return format_value(type, default_value);
  return {};
}

/// Whether the value keeps the rule of its field.
bool check_entry(const Entry& entry, const Value& value, const Value& default_value,
                 Violations& violations, const std::string& path) {
  if (satisfies(entry.traits, value)) return true;
  const auto* const number = std::get_if<double>(&value.data);
  const bool finite = number == nullptr || std::isfinite(*number);
  const std::string rule = finite ? constraint_text(entry.traits) : "a finite number";
  // As it was typed: YAML's form of -1 is -1.0.
  const std::string shown =
      number != nullptr && finite ? fmt::format("{}", *number) : format_value(*entry.type, value);
  std::string works = suggestion(*entry.type, entry.traits, value, default_value);
  violations.add(path,
                 fmt::format("{}={} is not allowed: it must {}", path, shown,
                             rule == "not empty" ? "not be empty" : "be " + rule),
                 works.empty() ? "" : fmt::format("{}={}", path, works));
  return false;
}

/// The values of an enum among the bits: "model.head=none".
std::vector<std::string> settings(const Entry& choice, uint32_t values, const std::string& path) {
  std::vector<std::string> texts;
  for (const NamedValue& named : choice.type->names)
    if ((values >> named.value & 1) != 0) texts.push_back(fmt::format("{}={}", path, named.name));
  return texts;
}

/// Refuses what was assigned to a field without an effect, unless it is the default, which asks for
/// nothing. Returns whether there is no such thing.
bool check_idle(const Schema& schema, const Entry& entry, const void* object, const void* defaults,
                std::string_view section, Violations& violations) {
  const std::string path = join(section, entry.name);
  const Value value = read_entry(entry, object);
  if (violations.where(path).empty() || value == read_entry(entry, defaults)) return true;
  const Entry& needed = *needed_entry(schema, entry);
  const std::string other = join(section, needed.name);
  const std::vector<std::string> names = settings(needed, entry.traits.needed, other);
  violations.add(path,
                 fmt::format("{}={} has no effect without {}", path,
                             format_value(*entry.type, value), fmt::join(names, " or ")),
                 // A value that was chosen stays.
                 violations.where(other).empty() ? names.front() : "remove " + path);
  return false;
}

/// Refuses what was assigned to a field that the section does not have. Returns whether nothing
/// was.
bool check_absent(const Schema& schema, const Entry& entry, const void* object,
                  std::string_view section, Violations& violations) {
  const std::string path = join(section, entry.name);
  bool assigned = !violations.where(path).empty();
  if (entry.section != nullptr) {
    walk(*entry.section, section_of(entry, object),
         [&](const std::string& key, const Entry&, const void*) {
           assigned = assigned || !violations.where(join(path, key)).empty();
         });
  }
  if (!assigned) return true;
  const Entry& selecting = *selecting_entry(schema);
  const std::string selector = join(section, selecting.name);
  const std::vector<std::string> names = settings(selecting, entry.traits.variants, selector);
  violations.add(path,
                 fmt::format("{} is a key of {}, not of {}={}", path, fmt::join(names, " and "),
                             selector,
                             format_value(*selecting.type, read_entry(selecting, object))),
                 // A variant that was chosen stays.
                 violations.where(selector).empty() ? names.front() : "remove " + path);
  return false;
}

void validate_section(const Schema& schema, const void* object, const void* defaults,
                      Violations& violations, std::string_view path) {
  bool good = true;
  for (const Entry& entry : schema.entries) {
    const std::string full = join(path, entry.name);
    if (!is_of_variant(schema, entry, object)) {
      good &= check_absent(schema, entry, object, path, violations);
    } else if (!is_present(schema, entry, object)) {
      good &= check_idle(schema, entry, object, defaults, path, violations);
    } else if (entry.section != nullptr) {
      validate_section(*entry.section, section_of(entry, object), section_of(entry, defaults),
                       violations, full);
    } else if (!check_entry(entry, read_entry(entry, object), read_entry(entry, defaults),
                            violations, full)) {
      good = false;
    }
  }
  if (schema.validate != nullptr && good) schema.validate(object, violations, path);
}

} // namespace

bool fields_hold(const Schema& schema, const void* object) {
  return std::ranges::all_of(schema.entries, [&](const Entry& entry) {
    if (!is_present(schema, entry, object)) return true;
    return entry.section != nullptr ? fields_hold(*entry.section, section_of(entry, object))
                                    : satisfies(entry.traits, read_entry(entry, object));
  });
}

void validate(const Schema& schema, const void* object, Violations& violations,
              std::string_view path) {
  validate_section(schema, object, schema.defaults.get(), violations, path);
}

} // namespace pentatron::config::detail
