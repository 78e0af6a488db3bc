#include "pentatron/data/tokenizer/bpe.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/unicode.h"
#include "pentatron/data/tokenizer/word_cache.h"

namespace pentatron::data::tokenizer {

namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";

int32_t token_of(const Vocabulary& vocabulary, std::string_view text, const TextMerge& merge) {
  const std::optional<int32_t> id = vocabulary.find(text);
  if (!id) {
    raise<DataError>("the merge '{}' '{}' needs the token '{}', which is not in the vocabulary",
                     merge.first, merge.second, text);
  }
  return *id;
}

std::vector<TextMerge> read_merges(const Json& json) {
  if (!json.contains("merges") || !json["merges"].is_array())
    throw DataError("the model BPE has no list `merges`");
  std::vector<TextMerge> merges;
  merges.reserve(json["merges"].size());
  for (const Json& merge : json["merges"]) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : std::string();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      raise<DataError>("merge {} of the model BPE is {}, not two tokens", merges.size(),
                       dump_json(merge));
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

} // namespace

std::unique_ptr<BpeModel> BpeModel::from_json(const Json& json) {
  constexpr std::string_view kWhere = "the model BPE";
  if (json_get_or(json, "dropout", 0.0, kWhere) != 0.0)
    throw DataError("the model BPE has a dropout, which is not supported: tokens would be random\n"
                    "  try: \"dropout\": null in its tokenizer.json");
  BpeOptions options;
  options.unk_token = json_get_or(json, "unk_token", std::string(), kWhere);
  options.continuing_subword_prefix =
      json_get_or(json, "continuing_subword_prefix", std::string(), kWhere);
  options.end_of_word_suffix = json_get_or(json, "end_of_word_suffix", std::string(), kWhere);
  options.fuse_unk = json_get_or(json, "fuse_unk", false, kWhere);
  options.byte_fallback = json_get_or(json, "byte_fallback", false, kWhere);
  options.ignore_merges = json_get_or(json, "ignore_merges", false, kWhere);
  if (!json.contains("vocab")) throw DataError("the model BPE has no `vocab`");
  return std::make_unique<BpeModel>(
      Vocabulary::from_json(json["vocab"], "the vocabulary of the model BPE"), read_merges(json),
      options);
}

BpeModel::BpeModel(Vocabulary vocabulary, const std::vector<TextMerge>& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), merges_(merges.size()), options_(std::move(options)) {
  const std::string& prefix = options_.continuing_subword_prefix;
  uint32_t rank = 0;
  std::string both;
  for (const TextMerge& merge : merges) {
    if (merge.second.size() < prefix.size())
      raise<DataError>("the merge '{}' '{}' does not have the prefix '{}'", merge.first,
                       merge.second, prefix);
    both = merge.first;
    both += std::string_view(merge.second).substr(prefix.size());
    const int32_t left = token_of(vocabulary_, merge.first, merge);
    const int32_t right = token_of(vocabulary_, merge.second, merge);
    merges_.set(left, right, {rank++, token_of(vocabulary_, both, merge)});
  }
  vocabulary_.for_each([&](std::string_view token, int32_t) {
    if (!token.empty() && token.size() == utf8_length(token[0]))
      characters_[read_code_point(token.data()).value] = *vocabulary_.find(token);
  });
  for (int b = 0; b < 256; ++b) {
    const std::optional<int32_t> id = vocabulary_.find(fmt::format("<0x{:02X}>", b));
    byte_tokens_[static_cast<size_t>(b)] = id.value_or(-1);
    has_byte_tokens_ = has_byte_tokens_ && id.has_value();
  }
  if (!options_.unk_token.empty()) unk_ = vocabulary_.find(options_.unk_token).value_or(-1);
  cut_at_metaspace_ = can_cut_at_metaspace();
}

bool BpeModel::can_cut_at_metaspace() const {
  if (!vocabulary_.find(kMetaspace) || options_.ignore_merges ||
      !options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty() ||
      (options_.byte_fallback && !has_byte_tokens_))
    return false;
  bool can = true;
  vocabulary_.for_each([&](std::string_view token, int32_t) {
    for (size_t at = token.find(kMetaspace); at != std::string_view::npos;
         at = token.find(kMetaspace, at + 1)) {
      if (at > 0 && !token.substr(0, at).ends_with(kMetaspace)) can = false;
    }
  });
  return can;
}

void BpeModel::encode(std::string_view word, WordCache& cache, std::vector<int32_t>& tokens) const {
  const char* limit = word.data() + word.size();
  while (!word.empty()) {
    std::string_view part = word;
    if (cut_at_metaspace_) {
      size_t end = word.find_first_not_of(kMetaspace); // bytes, so perhaps within a character
      end = word.find(kMetaspace, end == std::string_view::npos ? word.size() : end);
      part = word.substr(0, end);
    }
    word.remove_prefix(part.size());
    if (cache.find(part, limit, tokens)) continue;
    const size_t before = tokens.size();
    encode_word(part, tokens);
    cache.insert(part, tokens.data() + before, tokens.size() - before);
  }
}

void BpeModel::encode_word(std::string_view word, std::vector<int32_t>& tokens) const {
  if (options_.ignore_merges) {
    if (const std::optional<int32_t> id = vocabulary_.find(word)) {
      tokens.push_back(*id);
      return;
    }
  }
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  symbols_of(word, symbols);
  merges_.apply(symbols);
  tokens.insert(tokens.end(), symbols.begin(), symbols.end());
  if (symbols.capacity() > (size_t{1} << 16)) symbols = {};
}

void BpeModel::symbols_of(std::string_view word, std::vector<int32_t>& symbols) const {
  const bool decorated =
      !options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty();
  bool pending = false; // an unknown character that is not in `symbols` yet
  std::string text;
  for (size_t i = 0; i < word.size();) {
    const CodePoint c = read_code_point(word.data() + i);
    int32_t id = -1;
    std::string_view symbol = word.substr(i, c.size);
    if (decorated) {
      text.clear();
      if (i != 0) text += options_.continuing_subword_prefix;
      text += symbol;
      if (i + c.size == word.size()) text += options_.end_of_word_suffix;
      symbol = text;
      id = vocabulary_.find(symbol).value_or(-1);
    } else if (const auto found = characters_.find(c.value); found != characters_.end()) {
      id = found->second;
    }
    i += c.size;
    if (id >= 0) {
      if (pending) symbols.push_back(unk_);
      pending = false;
      symbols.push_back(id);
      continue;
    }
    if (options_.byte_fallback && std::all_of(symbol.begin(), symbol.end(), [&](char b) {
          return byte_tokens_[static_cast<unsigned char>(b)] >= 0;
        })) {
      for (const char b : symbol) symbols.push_back(byte_tokens_[static_cast<unsigned char>(b)]);
      continue;
    }
    if (options_.unk_token.empty()) continue;
    if (unk_ < 0)
      raise<DataError>("unk_token={} is not in the vocabulary, so '{}' cannot be encoded",
                       options_.unk_token, symbol);
    if (pending && !options_.fuse_unk) symbols.push_back(unk_);
    pending = true;
  }
  if (pending) symbols.push_back(unk_);
}

void ByteBpe::encode(std::string_view word, const char* limit, WordCache& cache,
                     std::vector<int32_t>& tokens) const {
  if (!cache.find(word, limit, tokens)) encode_new(word, cache, tokens);
}

void ByteBpe::encode_new(std::string_view word, WordCache& cache,
                         std::vector<int32_t>& tokens) const {
  if (whole_) {
    if (const auto found = whole_->find(std::string(word)); found != whole_->end()) {
      tokens.push_back(found->second);
      cache.insert(word, &found->second, 1);
      return;
    }
  }
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  for (const char b : word) {
    const int32_t id = of_byte_[static_cast<unsigned char>(b)];
    if (id >= 0) symbols.push_back(id);
  }
  merges_.apply(symbols);
  tokens.insert(tokens.end(), symbols.begin(), symbols.end());
  cache.insert(word, symbols.data(), symbols.size());
  if (symbols.capacity() > (size_t{1} << 16)) symbols = {};
}

} // namespace pentatron::data::tokenizer
