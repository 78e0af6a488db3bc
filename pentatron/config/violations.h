/// All problems of a configuration, collected in one pass, and the origin of each value.
///
/// A violation is a sentence that names the offending key=value and what it conflicts with, with a
/// value that would work:
///   run.yaml:12: parallel.tensor_model_parallel_size=6 does not divide
///   model.num_attention_heads=32
///     try: parallel.tensor_model_parallel_size=4
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::config {

struct Violation {
  std::string path;       ///< dotted key, empty for the file as a whole
  std::string where;      ///< "run.yaml:12", "override 'a.b=1'", or empty for a default
  std::string cause;      ///< one sentence
  std::string suggestion; ///< what works instead, or empty
};

class Violations {
 public:
  /// Records a violation of the value at `path`; where it was assigned is filled in.
  void add(std::string_view path, std::string cause, std::string suggestion = {});
  /// Records a violation that is not about a key's value: an unknown key, a syntax error.
  void add_at(std::string_view where, std::string_view path, std::string cause,
              std::string suggestion = {});
  /// Notes that `path` was assigned at `where`; the last assignment counts.
  void assigned(std::string_view path, std::string_view where);
  /// Where `path` was last assigned; empty for a default.
  std::string where(std::string_view path) const;

  bool empty() const { return list_.empty(); }
  /// Whether a value of the section, or the section itself, is among them.
  bool any_in(std::string_view section) const;
  const std::vector<Violation>& list() const { return list_; }
  /// Every violation, one after another, as ConfigError shows them.
  std::string text() const;
  /// Throws ConfigError(text()) if there is one.
  void throw_if_any() const;

 private:
  std::vector<Violation> list_;
  std::map<std::string, std::string, std::less<>> assigned_;
};

/// "model" and "num_layers" to "model.num_layers"; an empty section gives the name alone.
std::string join(std::string_view section, std::string_view name);

/// The divisors of `n`, for a message: "1, 2, 3, 6".
std::string divisors(int64_t n);

/// The divisor of `n` nearest to `value`, the smaller of equals; 1 where n is not positive.
int64_t nearest_divisor(int64_t n, int64_t value);

/// The multiple of `n` nearest to `value`, at least n.
int64_t nearest_multiple(int64_t n, int64_t value);

} // namespace pentatron::config
