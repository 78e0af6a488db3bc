/// The metadata of a file, whose keys begin with the architecture's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pentatron/base/gguf.h"
#include "pentatron/checkpoint/gguf/gguf_config.h"

namespace pentatron::checkpoint {

/// A number that was rounded to float, as people write it: 1e-05 for 9.999999747378752e-06.
double as_written(double value);

class GgufKeyReader {
 public:
  GgufKeyReader(const GgufFile& file, std::string architecture, Problems& problems)
      : file_(file), keys_(file.metadata()), architecture_(std::move(architecture)),
        problems_(problems) {}

  std::string full(std::string_view key) const { return architecture_ + "." + std::string(key); }
  /// Positive; anything else is a problem, and 1.
  int64_t size(std::string_view key) { return checked(full(key), keys_.integer(full(key))); }
  int64_t size(std::string_view key, int64_t otherwise) {
    return checked(full(key), keys_.find_integer(full(key)).value_or(otherwise));
  }
  std::optional<int64_t> find_size(std::string_view key) {
    const auto value = keys_.find_integer(full(key));
    return value ? std::optional(checked(full(key), *value)) : std::nullopt;
  }
  /// As written.
  std::optional<double> number(std::string_view key) const;
  /// Throws DataError if it is not there.
  double needed_number(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const { return keys_.find_text(full(key)); }
  bool has(std::string_view key) const { return keys_.find(full(key)) != nullptr; }
  bool has_tensor(const std::string& name) const { return file_.find(name) != nullptr; }
  void problem(std::string text) { problems_.push_back(std::move(text)); }
  const GgufFile& file() const { return file_; }
  const GgufKeys& keys() const { return keys_; }

  /// Reports a problem for each key of the architecture that is not in `known`.
  void refuse_others(const std::vector<std::string_view>& known);
  /// What means nothing as long as it has this value.
  void refuse_unless(std::string_view key, double neutral);

 private:
  int64_t checked(const std::string& key, int64_t value);

  const GgufFile& file_;
  const GgufKeys& keys_;
  std::string architecture_;
  Problems& problems_;
};

} // namespace pentatron::checkpoint
