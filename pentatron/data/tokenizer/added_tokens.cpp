#include "pentatron/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

namespace {

constexpr int64_t kMaxId = int64_t{1} << 24;

std::vector<AddedToken> read_tokens(const Json& json) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) return tokens;
  if (!json.is_array()) throw DataError("`added_tokens` is not a list");
  for (const Json& entry : json) {
    constexpr std::string_view kWhere = "an added token";
    AddedToken token;
    token.content = json_get<std::string>(entry, "content", kWhere);
    const int64_t id = json_get<int64_t>(entry, "id", kWhere);
    if (id < 0 || id >= kMaxId)
      raise<DataError>("the id {} of the added token '{}' is outside 0 to {}", id, token.content,
                       kMaxId - 1);
    token.id = static_cast<int32_t>(id);
    token.single_word = json_get_or(entry, "single_word", false, kWhere);
    token.lstrip = json_get_or(entry, "lstrip", false, kWhere);
    token.rstrip = json_get_or(entry, "rstrip", false, kWhere);
    token.special = json_get_or(entry, "special", false, kWhere);
    token.normalized = json_get_or(entry, "normalized", !token.special, kWhere);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

} // namespace

AddedTokens::AddedTokens(const Json& json, const Vocabulary& vocabulary,
                         const Normalizer* normalizer)
    : AddedTokens(read_tokens(json), vocabulary, normalizer) {}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Vocabulary& vocabulary,
                         const Normalizer* normalizer) {
  for (AddedToken& token : tokens) {
    token.id = vocabulary.find(token.content).value_or(token.id);
    Entry entry{token, token.content};
    if (token.normalized && normalizer != nullptr) entry.text = normalizer->apply(token.content);
    if (token.special) special_.insert(token.content);
    entries_[token.id] = std::move(entry);
  }
  for (const auto& [id, entry] : entries_) {
    if (entry.text.empty()) continue;
    Finder& finder = entry.token.normalized ? normalized_ : raw_;
    finder.trie.add(entry.text, id);
    finder.first[static_cast<unsigned char>(entry.text[0])] = true;
  }
}

bool AddedTokens::stands(const AddedToken& token, std::string_view text, size_t begin,
                         size_t end) const {
  if (!token.single_word) return true;
  const bool before = begin == 0 || !is_word(last_code_point(text.substr(0, begin)).value);
  const bool behind = end == text.size() || !is_word(read_code_point(text.data() + end).value);
  return before && behind;
}

void AddedTokens::split(std::string_view text, bool normalized,
                        std::vector<TextPart>& parts) const {
  const Finder& finder = normalized ? normalized_ : raw_;
  size_t done = 0;
  if (!finder.trie.empty()) {
    for (size_t i = 0; i < text.size();) {
      if (!finder.first[static_cast<unsigned char>(text[i])]) {
        ++i;
        continue;
      }
      const Trie::Found found = finder.trie.longest(text.substr(i));
      if (found.length == 0) {
        ++i;
        continue;
      }
      size_t begin = i, end = i + found.length;
      i = end;
      const AddedToken& token = entries_.at(found.value).token;
      if (!stands(token, text, begin, end)) continue;
      while (token.lstrip && begin > done) {
        const CodePoint c = last_code_point(text.substr(0, begin));
        if (!is_space(c.value)) break;
        begin -= c.size;
      }
      begin = std::max(begin, done);
      while (token.rstrip && end < text.size()) {
        const CodePoint c = read_code_point(text.data() + end);
        if (!is_space(c.value)) break;
        end += c.size;
      }
      if (done < begin) parts.push_back({done, begin, -1});
      parts.push_back({begin, end, found.value});
      done = std::max(done, end);
    }
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
}

} // namespace pentatron::data::tokenizer
