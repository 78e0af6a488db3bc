#include "pentatron/data/gpt/fill_in_the_middle.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace pentatron::data {

namespace {

/// `at` moved back to where a character begins.
size_t character_begin(std::string_view text, size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

} // namespace

FillInTheMiddleDataset::FillInTheMiddleDataset(std::shared_ptr<const TokenDataset> plain,
                                               std::shared_ptr<const Tokenizer> tokenizer,
                                               const Options& options)
    : plain_(std::move(plain)), tokenizer_(std::move(tokenizer)), options_(options),
      stream_(options.seed, "fill in the middle") {}

void FillInTheMiddleDataset::rearrange(uint64_t n, uint64_t place,
                                       std::span<int64_t> document) const {
  // Address j of sample n: four draws for each document.
  const uint64_t j = 4 * place;
  if (document.empty() || stream_.uniform(n, j) >= options_.rate) return;
  const std::string text = tokenizer_->decode(document);
  size_t first = character_begin(text, stream_.below(text.size() + 1, n, j + 1));
  size_t second = character_begin(text, stream_.below(text.size() + 1, n, j + 2));
  if (first > second) std::swap(first, second);
  const std::string_view all(text);
  std::vector<int32_t> prefix, middle, suffix;
  tokenizer_->encode(all.substr(0, first), prefix);
  tokenizer_->encode(all.substr(first, second - first), middle);
  tokenizer_->encode(all.substr(second), suffix);
  const size_t total = prefix.size() + middle.size() + suffix.size() + 3;
  if (total > document.size()) {
    const size_t excess = total - document.size();
    if (suffix.size() <= excess) return;
    suffix.resize(suffix.size() - excess);
  } else {
    suffix.resize(suffix.size() + document.size() - total,
                  static_cast<int32_t>(options_.pad_token));
  }
  auto out = document.begin();
  const auto put = [&](const std::vector<int32_t>& tokens) {
    out = std::copy(tokens.begin(), tokens.end(), out);
  };
  const bool suffix_first = stream_.uniform(n, j + 3) < options_.spm_rate;
  *out++ = options_.prefix_token;
  if (!suffix_first) put(prefix);
  *out++ = options_.suffix_token;
  put(suffix);
  *out++ = options_.middle_token;
  if (suffix_first) put(prefix);
  put(middle);
}

void FillInTheMiddleDataset::rearrange_sample(int64_t n, int64_t* tokens) const {
  const std::span<int64_t> all(tokens, static_cast<size_t>(sequence_length() + 1));
  uint64_t place = 0;
  for (auto begin = all.begin(); begin != all.end(); ++place) {
    const auto end = std::find(begin, all.end(), int64_t{tokenizer_->eod()});
    rearrange(static_cast<uint64_t>(n), place, {begin, end});
    begin = end == all.end() ? end : end + 1;
  }
}

void FillInTheMiddleDataset::sample(int64_t n, int64_t* tokens) const {
  plain_->sample(n, tokens);
  rearrange_sample(n, tokens);
}

void FillInTheMiddleDataset::sample_with_mask(int64_t n, int64_t* tokens,
                                              uint8_t* loss_mask) const {
  plain_->sample_with_mask(n, tokens, loss_mask);
  rearrange_sample(n, tokens);
  // Padding between documents teaches nothing.
  for (int64_t i = 0; i < sequence_length(); ++i) {
    if (tokens[i + 1] == options_.pad_token) loss_mask[i] = 0;
  }
}

} // namespace pentatron::data
