#include "pentatron/data/tokenizer/train_bpe.h"

#include <algorithm>
#include <queue>
#include <unordered_set>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/byte_level.h"
#include "pentatron/data/tokenizer/splitter.h"
#include "pentatron/data/tokenizer/tokenizer_json.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

namespace {

constexpr size_t kMaxWordBytes = 1024; // longer ones are taken apart: nobody learns from them

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

struct CountedWord {
  std::vector<int32_t> symbols;
  int64_t count;
};

/// Words as symbols, and how often every pair of neighbours occurs in which of them.
class PairCounts {
 public:
  explicit PairCounts(std::vector<CountedWord> words) : words_(std::move(words)) {
    for (size_t w = 0; w < words_.size(); ++w) {
      const std::vector<int32_t>& symbols = words_[w].symbols;
      for (size_t i = 0; i + 1 < symbols.size(); ++i)
        change(symbols[i], symbols[i + 1], words_[w].count, static_cast<uint32_t>(w));
    }
    for (const auto& [key, pair] : pairs_) queue_.push({pair.count, key});
  }

  /// The pair that occurs most often; false if none occurs `at_least` often.
  bool top(int64_t at_least, int32_t& left, int32_t& right) {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const int64_t now = pairs_[best.key].count;
      if (now != best.count) { // changed since
        if (now > 0) queue_.push({now, best.key});
        continue;
      }
      if (now < at_least) return false;
      left = static_cast<int32_t>(best.key >> 32);
      right = static_cast<int32_t>(best.key & 0xFFFFFFFF);
      return true;
    }
    return false;
  }

  void merge(int32_t left, int32_t right, int32_t token) {
    const std::unordered_set<uint32_t> where = std::move(pairs_[pair_key(left, right)].words);
    touched_.clear();
    for (const uint32_t w : where) merge_in_word(w, left, right, token);
    pairs_.erase(pair_key(left, right));
    // Pairs that became rarer are put right when they come up.
    for (const uint64_t key : touched_) {
      const auto found = pairs_.find(key);
      if (found != pairs_.end() && found->second.count > 0) queue_.push({found->second.count, key});
    }
  }

 private:
  struct Pair {
    int64_t count = 0;
    std::unordered_set<uint32_t> words; // where it occurs, or did
  };
  struct Candidate {
    int64_t count;
    uint64_t key;
    bool operator<(const Candidate& o) const {
      return count != o.count ? count < o.count : key > o.key;
    }
  };

  void change(int32_t left, int32_t right, int64_t by, uint32_t word) {
    Pair& pair = pairs_[pair_key(left, right)];
    pair.count += by;
    if (by > 0) pair.words.insert(word);
  }

  void merge_in_word(uint32_t w, int32_t left, int32_t right, int32_t token) {
    std::vector<int32_t>& symbols = words_[w].symbols;
    const int64_t count = words_[w].count;
    const bool found = [&] {
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] == left && symbols[i + 1] == right) return true;
      }
      return false;
    }();
    if (!found) return;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) change(symbols[i], symbols[i + 1], -count, w);
    size_t out = 0;
    for (size_t i = 0; i < symbols.size(); ++i) {
      if (i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right) {
        symbols[out++] = token;
        ++i;
      } else {
        symbols[out++] = symbols[i];
      }
    }
    symbols.resize(out);
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      change(symbols[i], symbols[i + 1], count, w);
      if (symbols[i] == token || symbols[i + 1] == token)
        touched_.insert(pair_key(symbols[i], symbols[i + 1]));
    }
  }

  std::vector<CountedWord> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::priority_queue<Candidate> queue_;
  std::unordered_set<uint64_t> touched_;
};

} // namespace

BpeTrainer::BpeTrainer(Options options) : options_(std::move(options)) {
  splitter_ = make_splitter(options_.pattern.empty() ? std::string(kGpt2Pattern) : options_.pattern,
                            PatternFlavor::kOniguruma);
  const auto smallest = static_cast<int64_t>(256 + options_.special.size());
  if (options_.vocab_size < smallest || options_.vocab_size > kMostTokens)
    raise<ConfigError>(
        "a vocabulary of {} tokens is not possible: a byte-level tokenizer has {} to {}",
        options_.vocab_size, smallest, kMostTokens);
}

void BpeTrainer::add(std::string_view text) {
  std::string key;
  const auto count = [&](std::string_view word) {
    while (!word.empty()) {
      key.assign(word.substr(0, kMaxWordBytes));
      ++words_[key];
      word.remove_prefix(key.size());
    }
  };
  for (size_t from = 0; from < text.size();) {
    const Match match = splitter_->find(text, from);
    const size_t begin = match.found() ? match.begin : text.size();
    count(text.substr(from, begin - from));
    if (!match.found()) break;
    count(text.substr(match.begin, match.end - match.begin));
    from = match.end;
    if (match.end == match.begin && from < text.size()) {
      count(text.substr(from, utf8_length(text[from])));
      from += utf8_length(text[from]);
    } else if (match.end == match.begin) {
      break;
    }
  }
}

Json BpeTrainer::train() {
  if (words_.empty()) throw DataError("there is no text to train a tokenizer on");
  std::vector<std::string> tokens; // bytes as characters, by id
  for (const std::string& token : options_.special) tokens.push_back(token);
  const auto first_byte = static_cast<int32_t>(tokens.size());
  for (int b = 0; b < 256; ++b)
    tokens.push_back(bytes_to_characters(std::string(1, static_cast<char>(b))));

  // In the order of the words' bytes, so that the result does not depend on the hash table's.
  std::vector<const std::pair<const std::string, int64_t>*> sorted;
  sorted.reserve(words_.size());
  for (const auto& word : words_) sorted.push_back(&word);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->first < b->first; });
  std::vector<CountedWord> words;
  words.reserve(sorted.size());
  for (const auto* entry : sorted) {
    CountedWord word{.symbols = {}, .count = entry->second};
    for (const char c : entry->first)
      word.symbols.push_back(first_byte + static_cast<unsigned char>(c));
    words.push_back(std::move(word));
  }
  PairCounts counts(std::move(words));

  Json merges = Json::array();
  std::unordered_map<std::string, int32_t>
      known; // a second way to a token merges into the same one
  for (size_t i = 0; i < tokens.size(); ++i) known[tokens[i]] = static_cast<int32_t>(i);
  int32_t left = 0, right = 0;
  while (static_cast<int64_t>(tokens.size()) < options_.vocab_size &&
         counts.top(options_.min_frequency, left, right)) {
    std::string text = tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
    merges.push_back({tokens[static_cast<size_t>(left)], tokens[static_cast<size_t>(right)]});
    const auto [found, is_new] = known.emplace(text, static_cast<int32_t>(tokens.size()));
    if (is_new) tokens.push_back(std::move(text));
    counts.merge(left, right, found->second);
  }

  Json vocabulary = Json::object();
  for (size_t i = 0; i < tokens.size(); ++i) vocabulary[tokens[i]] = i;
  Json added = Json::array();
  for (size_t i = 0; i < options_.special.size(); ++i)
    added.push_back(special_token(static_cast<int64_t>(i), options_.special[i]));
  Json pre_tokenizer = byte_level_step(true);
  if (!options_.pattern.empty()) {
    pre_tokenizer = {{"type", "Sequence"},
                     {"pretokenizers",
                      {{{"type", "Split"},
                        {"pattern", {{"Regex", options_.pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}},
                       byte_level_step(false)}}};
  }
  return byte_level_bpe(std::move(added), std::move(pre_tokenizer), byte_level_step(true),
                        std::move(vocabulary), std::move(merges));
}

} // namespace pentatron::data::tokenizer
