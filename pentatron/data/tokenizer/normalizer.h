/// The normalizers of tokenizer.json: text to text.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "pentatron/base/json.h"

namespace pentatron::data::tokenizer {

/// Immutable: any number of threads may use one.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Valid UTF-8 in, valid UTF-8 out.
  virtual std::string apply(std::string text) const = 0;
};

/// The member "normalizer" of tokenizer.json; null for null. Throws DataError, which names it, for
/// a type or an option that is not known.
std::unique_ptr<Normalizer> make_normalizer(const Json& json);

/// `text` with every match of a pattern, `{"String": ...}` or `{"Regex": ...}`, replaced.
class Replacer {
 public:
  Replacer(const Json& json, std::string_view where);
  ~Replacer();
  Replacer(Replacer&&) noexcept;
  std::string apply(std::string_view text) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace pentatron::data::tokenizer
