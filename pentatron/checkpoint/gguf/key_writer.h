/// A config.json on its way into the metadata of a file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "pentatron/base/gguf.h"
#include "pentatron/base/json.h"
#include "pentatron/checkpoint/gguf/gguf_config.h"

namespace pentatron::checkpoint {

class GgufKeyWriter {
 public:
  static constexpr const char* kWhere = "config.json"; ///< for messages

  GgufKeyWriter(const Json& hf, GgufHead& out, Problems& problems)
      : hf_(hf), out_(out), problems_(problems) {}

  template <class T> T get(const char* key) const { return json_get<T>(hf_, key, kWhere); }
  template <class T> T get(const char* key, T otherwise) const {
    return json_get_or<T>(hf_, key, std::move(otherwise), kWhere);
  }
  bool has(const char* key) const { return hf_.contains(key) && !hf_[key].is_null(); }
  const Json& json() const { return hf_; }
  /// Positive; anything else is a problem, and 1.
  int64_t size(const char* key) const { return checked(key, get<int64_t>(key)); }
  int64_t size(const char* key, int64_t otherwise) const {
    return checked(key, get<int64_t>(key, otherwise));
  }

  /// Under "<architecture>.<key>".
  void put(const char* key, int64_t value) { add(key, static_cast<uint32_t>(value)); }
  void put(const char* key, double value) { add(key, static_cast<float>(value)); }
  void put(const char* key, bool value) { add(key, value); }
  void put(const char* key, const char* value) { add(key, std::string(value)); }
  void problem(std::string text) const { problems_.push_back(std::move(text)); }
  GgufStructure& structure() { return out_.structure; }
  const GgufStructure& structure() const { return out_.structure; }
  GgufHead& out() { return out_; }

 private:
  int64_t checked(const char* key, int64_t value) const;
  void add(const char* key, GgufValue value);

  const Json& hf_;
  GgufHead& out_;
  Problems& problems_;
};

} // namespace pentatron::checkpoint
