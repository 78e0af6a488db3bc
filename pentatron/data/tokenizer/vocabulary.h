/// Tokens and their ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pentatron/base/json.h"

namespace pentatron::data::tokenizer {

/// Ids may have gaps, and two ids may have one token (the last one is found by it).
class Vocabulary {
 public:
  Vocabulary() = default;
  /// Throws DataError for a negative id, one that is far beyond the number of tokens, and two
  /// tokens with one id.
  explicit Vocabulary(std::vector<std::pair<std::string, int64_t>> tokens);
  /// Of a JSON object {token: id}. `where` names it in messages.
  static Vocabulary from_json(const Json& json, std::string_view where);

  std::optional<int32_t> find(std::string_view token) const;
  /// The token of an id; none in a gap.
  std::optional<std::string_view> token(int64_t id) const;
  /// Ids are below this.
  int64_t end() const { return static_cast<int64_t>(by_id_.size()); }
  /// The number of tokens.
  int64_t size() const { return size_; }
  /// Calls f(token, id) in the order of the ids.
  template <class F> void for_each(F&& f) const {
    for (size_t id = 0; id < by_id_.size(); ++id) {
      if (by_id_[id]) f(std::string_view(*by_id_[id]), static_cast<int32_t>(id));
    }
  }

 private:
  std::vector<std::optional<std::string>> by_id_;
  std::vector<int32_t> slots_; // open addressing: id + 1, or 0
  int64_t size_ = 0;
};

/// A fast hash of bytes for tables in memory.
uint64_t hash_bytes(std::string_view bytes);

} // namespace pentatron::data::tokenizer
