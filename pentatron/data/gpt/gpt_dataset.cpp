#include "pentatron/data/gpt/gpt_dataset.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/data/token_stream.h"

namespace pentatron::data {

SequenceRange megatron_split(const std::string& split, int64_t num_sequences, Part part) {
  std::vector<double> shares;
  const char* p = split.data();
  const char* const end = p + split.size();
  bool good = true;
  const auto is_number = [](char c) { return c == '.' || (c >= '0' && c <= '9'); };
  while (p != end && good) {
    if (!is_number(*p)) {
      ++p;
      continue;
    }
    const char* const begin = p;
    while (p != end && is_number(*p)) ++p;
    const auto [next, error] =
        std::from_chars(begin, p, shares.emplace_back(), std::chars_format::fixed);
    good = error == std::errc() && next == p && std::isfinite(shares.back());
  }
  double sum = 0;
  for (const double share : shares) sum += share;
  if (!good || shares.empty() || shares.size() > 3 || !(sum > 0)) {
    raise<ConfigError>(
        "dataset.split={} is not up to three shares, such as 95,5,0\n  try: dataset.split=95,5",
        split);
  }
  shares.resize(3);
  double low = 0;
  for (size_t i = 0; i < static_cast<size_t>(part); ++i) low += shares[i] / sum;
  const double high = low + shares[static_cast<size_t>(part)] / sum;
  const auto cut = [&](double at) { // to even at one half, as Python rounds
    return std::clamp(static_cast<int64_t>(std::nearbyint(at * static_cast<double>(num_sequences))),
                      int64_t{0}, num_sequences);
  };
  return {cut(low), cut(high)};
}

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> corpus,
                       std::shared_ptr<const GptIndex> index, int64_t vocab_size)
    : corpus_(std::move(corpus)), index_(std::move(index)), vocab_size_(vocab_size) {}

int64_t GptDataset::read(int64_t n, int64_t* tokens) const {
  if (n < 0 || n >= index_->num_samples)
    raise<DataError>("{} has {} samples, so sample {}, counted from 0, does not exist",
                     corpus_->prefix(), index_->num_samples, n);
  const int64_t j = at(index_->shuffle, n);
  const int64_t first = at(index_->sample_begin, 2 * j);
  const int64_t begin_offset = at(index_->sample_begin, 2 * j + 1);
  const int64_t last = at(index_->sample_begin, 2 * j + 2);
  const int64_t end_offset = at(index_->sample_begin, 2 * j + 3);
  const int64_t room = index_->sequence_length + 1;
  int64_t filled = 0;
  for (int64_t d = first; d <= last; ++d) {
    const IndexedDataset::Sequence sequence =
        corpus_->sequence(index_->documents[static_cast<size_t>(d)]);
    const int64_t begin = d == first ? begin_offset : 0;
    const int64_t end = d == last ? end_offset + 1 : sequence.length;
    const int64_t count = end - begin;
    if (count < 0 || end > sequence.length || count > room - filled)
      raise<DataError>("{}.idx has changed since the sample order was computed", corpus_->prefix());
    corpus_->read_tokens(sequence.first_token + begin, count, tokens + filled);
    filled += count;
  }
  check_tokens(tokens, filled, vocab_size_, *corpus_);
  std::fill(tokens + filled, tokens + room, 0);
  return filled;
}

void GptDataset::sample(int64_t n, int64_t* tokens) const {
  read(n, tokens);
}

void GptDataset::sample_with_mask(int64_t n, int64_t* tokens, uint8_t* loss_mask) const {
  const int64_t targets = read(n, tokens) - 1;
  std::fill(loss_mask, loss_mask + targets, 1);
  std::fill(loss_mask + targets, loss_mask + index_->sequence_length, 0);
}

} // namespace pentatron::data
