#include "pentatron/data/tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "pentatron/base/error.h"

namespace pentatron::data::tokenizer {

uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t h = bytes.size() * kMultiplier;
  const char* p = bytes.data();
  size_t n = bytes.size();
  const auto mix = [&h](uint64_t word) {
    h = (h ^ word) * kMultiplier;
    h ^= h >> 32;
  };
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  uint64_t word = 0;
  std::memcpy(&word, p, n);
  mix(word);
  return h;
}

Vocabulary::Vocabulary(std::vector<std::pair<std::string, int64_t>> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t limit = (int64_t{1} << 20) + 4 * count; // a gap costs memory
  int64_t end = 0;
  for (const auto& [token, id] : tokens) {
    if (id < 0 || id >= limit)
      raise<DataError>("the id {} of token '{}' is outside 0 to {}, for {} tokens", id, token,
                       limit - 1, count);
    end = std::max(end, id + 1);
  }
  by_id_.resize(static_cast<size_t>(end));
  slots_.assign(std::bit_ceil(tokens.size() * 2 + 1), 0);
  for (auto& [token, id] : tokens) {
    auto& place = by_id_[static_cast<size_t>(id)];
    if (place) raise<DataError>("the tokens '{}' and '{}' have the same id, {}", *place, token, id);
    place = std::move(token);
    ++size_;
    size_t slot = hash_bytes(*place) & (slots_.size() - 1);
    while (slots_[slot] != 0 && *by_id_[static_cast<size_t>(slots_[slot] - 1)] != *place)
      slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<int32_t>(id) + 1;
  }
}

Vocabulary Vocabulary::from_json(const Json& json, std::string_view where) {
  if (!json.is_object()) raise<DataError>("{} is not an object of tokens and ids", where);
  std::vector<std::pair<std::string, int64_t>> tokens;
  tokens.reserve(json.size());
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<uint64_t>() > INT32_MAX))
      raise<DataError>("the id of token '{}' in {} is {}, which is not a token id", token, where,
                       dump_json(id));
    tokens.emplace_back(token, id.get<int64_t>());
  }
  return Vocabulary(std::move(tokens));
}

std::optional<int32_t> Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  for (size_t slot = hash_bytes(token) & (slots_.size() - 1); slots_[slot] != 0;
       slot = (slot + 1) & (slots_.size() - 1)) {
    if (*by_id_[static_cast<size_t>(slots_[slot] - 1)] == token) return slots_[slot] - 1;
  }
  return std::nullopt;
}

std::optional<std::string_view> Vocabulary::token(int64_t id) const {
  if (id < 0 || id >= end() || !by_id_[static_cast<size_t>(id)]) return std::nullopt;
  return std::string_view(*by_id_[static_cast<size_t>(id)]);
}

} // namespace pentatron::data::tokenizer
