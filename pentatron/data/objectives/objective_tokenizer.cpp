#include "pentatron/data/objectives/objective_tokenizer.h"

#include <utility>
#include <vector>

#include "pentatron/data/objectives/special_tokens.h"

namespace pentatron::data {

namespace {

class ObjectiveTokenizer final : public Tokenizer {
 public:
  ObjectiveTokenizer(std::shared_ptr<const Tokenizer> base, ObjectiveTokens tokens)
      : base_(std::move(base)), added_(std::move(tokens.added)), before_(std::move(tokens.before)),
        behind_(std::move(tokens.behind)), eod_(tokens.eod) {}

  std::string name() const override { return base_->name(); }
  int64_t vocab_size() const override { return base_->vocab_size() + std::ssize(added_); }
  int32_t eod() const override { return eod_; }

  void encode(std::string_view text, std::vector<int32_t>& tokens) const override {
    while (!text.empty()) {
      size_t begin = std::string_view::npos, which = 0;
      for (size_t i = 0; i < added_.size(); ++i) {
        const size_t found = text.find(added_[i]);
        if (found < begin) {
          begin = found;
          which = i;
        }
      }
      base_->encode(text.substr(0, begin), tokens);
      if (begin == std::string_view::npos) return;
      tokens.push_back(static_cast<int32_t>(base_->vocab_size()) + static_cast<int32_t>(which));
      text.remove_prefix(begin + added_[which].size());
    }
  }
  void encode_with_special(std::string_view text, std::vector<int32_t>& tokens) const override {
    tokens.insert(tokens.end(), before_.begin(), before_.end());
    encode(text, tokens);
    tokens.insert(tokens.end(), behind_.begin(), behind_.end());
  }
  std::string decode(std::span<const int64_t> tokens) const override {
    return join(tokens, [&](std::span<const int64_t> part) { return base_->decode(part); });
  }
  std::string decode_with_special(std::span<const int64_t> tokens) const override {
    return join(
        tokens, [&](std::span<const int64_t> part) { return base_->decode_with_special(part); },
        true);
  }
  std::string token_name(int64_t id) const override {
    return is_added(id) ? added_name(id) : base_->token_name(id);
  }
  std::optional<int32_t> token_id(std::string_view token) const override {
    for (size_t i = 0; i < added_.size(); ++i)
      if (added_[i] == token)
        return static_cast<int32_t>(base_->vocab_size() + static_cast<int64_t>(i));
    return base_->token_id(token);
  }
  bool is_special(int64_t id) const override {
    return is_added(id) ? !is_sentinel(added_name(id)) : base_->is_special(id);
  }

 private:
  static bool is_sentinel(std::string_view name) { return name.starts_with("<extra_id_"); }
  bool is_added(int64_t id) const { return id >= base_->vocab_size() && id < vocab_size(); }
  const std::string& added_name(int64_t id) const {
    return added_[static_cast<size_t>(id - base_->vocab_size())];
  }
  template <class Decode>
  std::string join(std::span<const int64_t> tokens, Decode decode, bool all = false) const {
    std::string text;
    for (size_t begin = 0; begin < tokens.size();) {
      if (is_added(tokens[begin])) {
        const std::string& name = added_name(tokens[begin++]);
        if (all || is_sentinel(name)) text += name;
        continue;
      }
      size_t end = begin;
      while (end < tokens.size() && !is_added(tokens[end])) ++end;
      text += decode(tokens.subspan(begin, end - begin));
      begin = end;
    }
    return text;
  }

  std::shared_ptr<const Tokenizer> base_;
  std::vector<std::string> added_; ///< their ids follow each other above those of `base_`
  std::vector<int32_t> before_, behind_;
  int32_t eod_;
};

} // namespace

std::shared_ptr<const Tokenizer> with_objective_tokens(std::shared_ptr<const Tokenizer> base,
                                                       const DatasetConfig& config) {
  ObjectiveTokens tokens = objective_tokens(config, *base);
  if (tokens.added.empty()) return base;
  return std::make_shared<ObjectiveTokenizer>(std::move(base), std::move(tokens));
}

} // namespace pentatron::data
