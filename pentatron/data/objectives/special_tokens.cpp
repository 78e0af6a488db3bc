#include "pentatron/data/objectives/special_tokens.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

constexpr std::string_view kSpaceMark = "\u2581";

bool begins_with_word(std::string_view text) {
  const auto c = static_cast<unsigned char>(text.empty() ? ' ' : text[0]);
  return c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/// A byte as token_name() shows it: "<0xC3>".
bool is_high_byte(std::string_view name) {
  return name.size() == 6 && name.starts_with("<0x") && name[3] >= '8';
}

} // namespace

int64_t SpecialTokens::find(std::string_view key, const std::string& value,
                            std::span<const std::string_view> names) {
  if (!value.empty()) {
    if (const auto id = tokenizer_->token_id(value)) return *id;
    raise<ConfigError>("{}={} is not a token of the tokenizer ({})\n  try: {}=\"\"", key, value,
                       tokenizer_->name(), key);
  }
  for (const std::string_view name : names) {
    if (const auto id = tokenizer_->token_id(name)) return *id;
  }
  added_.emplace_back(names.front());
  return end_++;
}

std::vector<int64_t> SpecialTokens::sentinels(int64_t count) {
  std::vector<int64_t> ids;
  while (const auto id = tokenizer_->token_id(fmt::format("<extra_id_{}>", ids.size())))
    ids.push_back(*id);
  if (!ids.empty()) return ids;
  for (; std::ssize(ids) < count; ++end_) {
    added_.push_back(fmt::format("<extra_id_{}>", ids.size()));
    ids.push_back(end_);
  }
  return ids;
}

void SpecialTokens::check(int64_t model_vocab_size) const {
  if (model_vocab_size >= end_) return;
  const std::string added = added_.empty() ? "" : fmt::format(" with {}", added_text());
  raise<ConfigError>(
      "model.vocab_size={} is smaller than the {} tokens of the tokenizer ({}){}\n  try: "
      "model.vocab_size={}",
      model_vocab_size, end_, tokenizer_->name(), added, end_);
}

std::string SpecialTokens::summary() const {
  return added_.empty() ? "" : "\n  tokens above the vocabulary: " + added_text();
}

std::string SpecialTokens::added_text() const {
  std::vector<std::string> parts;
  int64_t sentinels = 0;
  for (size_t i = 0; i < added_.size(); ++i) {
    const int64_t id = tokenizer_->vocab_size() + static_cast<int64_t>(i);
    if (!added_[i].starts_with("<extra_id_")) {
      parts.push_back(fmt::format("{}={}", added_[i], id));
    } else if (++sentinels == 1) {
      parts.push_back(fmt::format("<extra_id_0>={}", id));
    } else {
      parts.back() = fmt::format("<extra_id_0> to {}={} to {}", added_[i], id - sentinels + 1, id);
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

BertTokens::BertTokens(const DatasetConfig& config, SpecialTokens& special)
    : pad(special.find("dataset.pad_token", config.pad_token, kPadNames)),
      cls(special.find("dataset.cls_token", config.cls_token, kClsNames)),
      sep(special.find("dataset.sep_token", config.sep_token, kSepNames)),
      mask(special.find("dataset.mask_token", config.mask_token, kMaskNames)) {}

int64_t find_eos(const DatasetConfig& config, const Tokenizer& tokenizer, SpecialTokens& special) {
  const bool by_name = !config.eos_token.empty() || tokenizer.token_id(kEosNames[0]);
  return by_name || tokenizer.eod() < 0
             ? special.find("dataset.eos_token", config.eos_token, kEosNames)
             : tokenizer.eod();
}

T5Tokens::T5Tokens(const DatasetConfig& config, const Tokenizer& tokenizer, SpecialTokens& special)
    : pad(special.find("dataset.pad_token", config.pad_token, kPadNames)),
      eos(find_eos(config, tokenizer, special)) {
  // The vocabulary is asked for before the configuration is checked.
  sentinels =
      special.sentinels(std::min<int64_t>(config.vocab_extra_ids, DatasetConfig::kMaxExtraIds));
}

ObjectiveTokens objective_tokens(const DatasetConfig& config, const Tokenizer& tokenizer) {
  SpecialTokens special(tokenizer);
  ObjectiveTokens result{.added = {}, .before = {}, .behind = {}, .eod = tokenizer.eod()};
  // A model that was trained on masked words is tuned on labelled texts: one vocabulary for both.
  if (config.type == DatasetType::kBert || config.type == DatasetType::kClassification) {
    const BertTokens tokens(config, special);
    result.before = {static_cast<int32_t>(tokens.cls)};
    result.behind = {static_cast<int32_t>(tokens.sep)};
  } else if (config.type == DatasetType::kT5) {
    result.eod = static_cast<int32_t>(T5Tokens(config, tokenizer, special).eos);
    result.behind = {result.eod};
  }
  result.added = special.added();
  return result;
}

int64_t needed_vocabulary(const DatasetConfig& config, const Tokenizer& tokenizer) {
  return tokenizer.vocab_size() + std::ssize(objective_tokens(config, tokenizer).added);
}

std::vector<bool> continuing_tokens(const Tokenizer& tokenizer) {
  const int64_t size = tokenizer.vocab_size();
  std::vector<std::string> names;
  bool spaces = false, pieces = false;
  for (int64_t id = 0; id < size; ++id) {
    const std::string& name = names.emplace_back(tokenizer.token_name(id));
    spaces = spaces || ((name.starts_with(kSpaceMark) || name.starts_with(' ')) && name.size() > 1);
    pieces = pieces || (name.starts_with("##") && begins_with_word(name.substr(2)));
  }
  std::vector<bool> continues(static_cast<size_t>(size));
  for (int64_t id = 0; id < size; ++id) {
    const std::string& name = names[static_cast<size_t>(id)];
    if (tokenizer.is_special(id)) continue;
    continues[static_cast<size_t>(id)] =
        pieces && !spaces
            ? name.starts_with("##")
            : (begins_with_word(name) && !name.starts_with(kSpaceMark)) || is_high_byte(name);
  }
  return continues;
}

} // namespace pentatron::data
