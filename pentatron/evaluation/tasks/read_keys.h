/// Reads the keys of a task file one by one and refuses unknown keys at the end.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/config/field.h"
#include "pentatron/evaluation/tasks/field.h"

namespace pentatron::evaluation {

class KeyReader {
 public:
  /// `where`: "tasks/a.yaml", or with the section: "tasks/a.yaml: fewshot_config". `remedy`: what
  /// to write in place of something that is not a mapping.
  KeyReader(const Document& map, std::string where, std::string_view remedy = "key: value");

  /// Null if the key is not there.
  Document any(std::string_view key);
  bool has(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  std::optional<int64_t> integer(std::string_view key);
  bool boolean(std::string_view key, bool otherwise);
  /// A text, or a list of them.
  std::vector<std::string> texts(std::string_view key);
  /// A list of mappings; none if the key is not there.
  std::vector<Document> maps(std::string_view key, std::string_view remedy);
  Field field(std::string_view key);
  /// Known, and without effect here.
  void ignore(std::initializer_list<std::string_view> keys);
  /// An expression that is not valid is refused.
  void check_regex(std::string_view key, const std::string& pattern) const;
  /// A known but unsupported key: refused unless its value has no effect.
  void refuse(std::string_view key, std::string_view reason, std::string_view remedy);

  template <class E> E one_of(std::string_view key, E otherwise) {
    const std::optional<std::string> name = text(key);
    if (!name) return otherwise;
    if (const std::optional<E> value = config::from_string<E>(*name)) return *value;
    std::string known;
    for (const auto& entry : enum_names(E{}))
      known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
    fail(fmt::format("{}: {} is not supported", key, *name), "one of " + known);
  }

  /// Refuses what is left.
  void finish() const;
  [[noreturn]] void fail(std::string_view what, std::string_view remedy) const;
  const std::string& where() const { return where_; }

 private:
  const Document& map_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
};

} // namespace pentatron::evaluation
