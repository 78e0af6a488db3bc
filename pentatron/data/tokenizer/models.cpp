#include <algorithm>
#include <limits>
#include <unordered_map>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/bpe.h"
#include "pentatron/data/tokenizer/model.h"
#include "pentatron/data/tokenizer/trie.h"
#include "pentatron/data/tokenizer/unigram.h"
#include "pentatron/data/tokenizer/word_cache.h"

namespace pentatron::data::tokenizer {

namespace {

/// The tokens of a word from the cache, or else by `encode(word, tokens)`.
template <class F>
void encode_cached(std::string_view word, WordCache& cache, std::vector<int32_t>& tokens,
                   F&& encode) {
  if (cache.find(word, word.data() + word.size(), tokens)) return;
  const size_t before = tokens.size();
  encode(word, tokens);
  cache.insert(word, tokens.data() + before, tokens.size() - before);
}

/// The longest token that the rest of a word begins with, again and again.
///
/// Source: Wu et al. 2016 (arXiv:1609.08144), BERT's tokenizer.
class WordPieceModel final : public Model {
 public:
  explicit WordPieceModel(const Json& json) {
    constexpr std::string_view kWhere = "the model WordPiece";
    if (!json.contains("vocab")) throw DataError("the model WordPiece has no `vocab`");
    vocabulary_ = Vocabulary::from_json(json["vocab"], "the vocabulary of the model WordPiece");
    unk_token_ = json_get_or(json, "unk_token", std::string("[UNK]"), kWhere);
    const auto prefix = json_get_or(json, "continuing_subword_prefix", std::string("##"), kWhere);
    max_characters_ = json_get_or(json, "max_input_chars_per_word", int64_t{100}, kWhere);
    unk_ = vocabulary_.find(unk_token_).value_or(-1);
    vocabulary_.for_each([&](std::string_view token, int32_t id) {
      if (token.empty()) return;
      first_.add(token, id);
      if (token.size() > prefix.size() && token.starts_with(prefix))
        next_.add(token.substr(prefix.size()), id);
    });
  }

  void encode(std::string_view word, WordCache& cache,
              std::vector<int32_t>& tokens) const override {
    encode_cached(word, cache, tokens,
                  [this](std::string_view w, std::vector<int32_t>& t) { encode_word(w, t); });
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  void encode_word(std::string_view word, std::vector<int32_t>& tokens) const {
    const size_t before = tokens.size();
    int64_t characters = 0;
    for_each_code_point(word, [&](char32_t) { ++characters; });
    bool known = characters <= max_characters_;
    for (size_t i = 0; known && i < word.size();) {
      const Trie::Found found = (i == 0 ? first_ : next_).longest(word.substr(i));
      known = found.length != 0;
      if (known) tokens.push_back(found.value);
      i += found.length;
    }
    if (known) return;
    tokens.resize(before);
    if (unk_ < 0)
      raise<DataError>("unk_token={} is not in the vocabulary, so '{}' cannot be encoded",
                       unk_token_, word);
    tokens.push_back(unk_);
  }

  Vocabulary vocabulary_;
  std::string unk_token_;
  int64_t max_characters_ = 100;
  int32_t unk_ = -1;
  Trie first_, next_;
};

class WordLevelModel final : public Model {
 public:
  explicit WordLevelModel(const Json& json) {
    if (!json.contains("vocab")) throw DataError("the model WordLevel has no `vocab`");
    vocabulary_ = Vocabulary::from_json(json["vocab"], "the vocabulary of the model WordLevel");
    unk_token_ = json_get_or(json, "unk_token", std::string("<unk>"), "the model WordLevel");
    unk_ = vocabulary_.find(unk_token_).value_or(-1);
  }
  void encode(std::string_view word, WordCache&, std::vector<int32_t>& tokens) const override {
    const int32_t id = vocabulary_.find(word).value_or(unk_);
    if (id < 0)
      raise<DataError>("unk_token={} is not in the vocabulary, so '{}' cannot be encoded",
                       unk_token_, word);
    tokens.push_back(id);
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::string unk_token_;
  int32_t unk_ = -1;
};

class UnigramModel final : public Model {
 public:
  explicit UnigramModel(const Json& json) {
    constexpr std::string_view kWhere = "the model Unigram";
    if (!json.contains("vocab") || !json["vocab"].is_array())
      throw DataError("the model Unigram has no list `vocab`");
    std::vector<std::pair<std::string, int64_t>> tokens;
    std::unordered_map<std::string, size_t> seen;
    double lowest = std::numeric_limits<double>::infinity();
    for (const Json& entry : json["vocab"]) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
        raise<DataError>("entry {} of the vocabulary of the model Unigram is {}, not a token and "
                         "its score",
                         scores_.size(), dump_json(entry));
      const auto id = static_cast<int64_t>(scores_.size());
      tokens.emplace_back(entry[0].get<std::string>(), id);
      scores_.push_back(entry[1].get<double>());
      lowest = std::min(lowest, scores_.back());
      trie_.add(tokens.back().first, static_cast<int32_t>(id));
    }
    unk_score_ = lowest - 10.0;
    vocabulary_ = Vocabulary(std::move(tokens));
    byte_fallback_ = json_get_or(json, "byte_fallback", false, kWhere);
    unk_ = static_cast<int32_t>(
        std::clamp<int64_t>(json_get_or(json, "unk_id", int64_t{-1}, kWhere), -1, INT32_MAX));
    if (unk_ >= vocabulary_.size())
      raise<DataError>("unk_id={} of the model Unigram is not below its {} tokens", unk_,
                       vocabulary_.size());
  }

  void encode(std::string_view word, WordCache& cache,
              std::vector<int32_t>& tokens) const override {
    encode_cached(word, cache, tokens,
                  [this](std::string_view w, std::vector<int32_t>& t) { encode_word(w, t); });
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  void encode_word(std::string_view word, std::vector<int32_t>& tokens) const {
    std::vector<Segment> segments;
    constexpr int32_t kUnknown = -2;
    best_segmentation<double>(
        trie_, word, unk_score_, unk_ >= 0 ? unk_ : kUnknown,
        [this](int32_t token, size_t) { return scores_[static_cast<size_t>(token)]; }, segments);
    for (size_t i = 0; i < segments.size(); ++i) {
      Segment all = segments[i];
      if (all.token == unk_ || all.token == kUnknown) {
        while (i + 1 < segments.size() && segments[i + 1].token == all.token)
          all.end = segments[++i].end;
      }
      // The text decides, not the token: a run of unknown characters may be a token.
      const std::string_view text = word.substr(all.begin, all.end - all.begin);
      if (const std::optional<int32_t> id = vocabulary_.find(text)) {
        tokens.push_back(*id);
      } else if (!byte_fallback_ || !append_bytes(text, tokens)) {
        if (unk_ < 0)
          raise<DataError>("'{}' is not in the vocabulary, and the Unigram model has no unk_id",
                           text);
        tokens.push_back(unk_);
      }
    }
  }

  bool append_bytes(std::string_view text, std::vector<int32_t>& tokens) const {
    const size_t before = tokens.size();
    for (const char b : text) {
      const auto id = vocabulary_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(b)));
      if (!id) {
        tokens.resize(before);
        return false;
      }
      tokens.push_back(*id);
    }
    return true;
  }

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  Trie trie_;
  double unk_score_ = 0;
  int32_t unk_ = -1;
  bool byte_fallback_ = false;
};

} // namespace

std::unique_ptr<Model> make_word_piece(const Json& json) {
  return std::make_unique<WordPieceModel>(json);
}
std::unique_ptr<Model> make_word_level(const Json& json) {
  return std::make_unique<WordLevelModel>(json);
}
std::unique_ptr<Model> make_unigram(const Json& json) {
  return std::make_unique<UnigramModel>(json);
}

std::unique_ptr<Model> make_model(const Json& json) {
  if (!json.is_object()) throw DataError("tokenizer.json has no `model`");
  std::string type = json_get_or(json, "type", std::string(), "the model");
  if (type.empty()) { // files of old versions do not say
    type = json.contains("merges")                              ? "BPE"
           : json.contains("vocab") && json["vocab"].is_array() ? "Unigram"
           : json.contains("continuing_subword_prefix")         ? "WordPiece"
                                                                : "WordLevel";
  }
  if (type == "BPE") return BpeModel::from_json(json);
  if (type == "WordPiece") return make_word_piece(json);
  if (type == "WordLevel") return make_word_level(json);
  if (type == "Unigram") return make_unigram(json);
  raise<DataError>("the model type {} is not supported", type);
}

} // namespace pentatron::data::tokenizer
