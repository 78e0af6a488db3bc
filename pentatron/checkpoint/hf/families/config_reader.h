/// The keys of a config.json: typed, with the file's name in every error.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/models/model_config.h"

namespace pentatron::checkpoint {

class ConfigReader {
 public:
  /// Throws DataError if `json` is not an object.
  ConfigReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) raise<DataError>("{} is not a JSON object", where_);
  }
  template <class T> T get(const char* key) const { return json_get<T>(json_, key, where_); }
  template <class T> T get(const char* key, T otherwise) const {
    return json_get_or<T>(json_, key, otherwise, where_);
  }
  template <class T> std::optional<T> find(const char* key) const {
    if (!json_.contains(key) || json_[key].is_null()) return std::nullopt;
    return json_get<T>(json_, key, where_);
  }
  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }
  /// `remedy` is what to try, if there is something.
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy = {}) const {
    raise<ConfigError>("{}: {} is not supported{}", where_, what,
                       remedy.empty() ? "" : "\n  try: " + remedy);
  }

 private:
  const Json& json_;
  std::string where_;
};

/// The names of the activation functions that MLPs with and without a gate may have.
std::vector<std::string_view> gated_activation_names();
/// None: there is no such function here.
std::optional<models::ActivationFunction> find_activation(std::string_view name, bool gated);
/// The activation function that `key` names, or `otherwise` without it; throws ConfigError for one
/// that does not exist here.
models::ActivationFunction read_activation(const ConfigReader& in, const char* key,
                                           const std::string& otherwise, bool gated);
std::string activation_name(models::ActivationFunction f);

} // namespace pentatron::checkpoint
