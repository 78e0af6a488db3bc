#include "pentatron/data/gpt/blend.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::data {

namespace {

constexpr size_t kRecentBlocks = 8;
constexpr size_t kMostDatasets = 32766;

std::optional<double> as_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// numpy adds up to 7 numbers in order, up to 128 in eight lanes, more by halves.
double numpy_sum(std::span<const double> x) {
  const size_t n = x.size();
  if (n < 8) return std::accumulate(x.begin(), x.end(), 0.0);
  if (n > 128) {
    const size_t half = n / 2 - n / 2 % 8;
    return numpy_sum(x.first(half)) + numpy_sum(x.subspan(half));
  }
  double lane[8];
  std::copy_n(x.begin(), 8, lane);
  size_t i = 8;
  for (; i < n - n % 8; i += 8) {
    for (size_t k = 0; k < 8; ++k) lane[k] += x[i + k];
  }
  double sum =
      ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  for (; i < n; ++i) sum += x[i];
  return sum;
}

} // namespace

std::vector<std::string> blend_words(std::string_view text) {
  text = trim(text);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  const auto separates = [](char c) {
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
  };
  std::vector<std::string> words;
  for (size_t i = 0; i < text.size();) {
    if (separates(text[i])) {
      ++i;
      continue;
    }
    const char quote = text[i] == '"' || text[i] == '\'' ? text[i] : '\0';
    size_t end = i + (quote != '\0' ? 1 : 0);
    while (end < text.size() && (quote != '\0' ? text[end] != quote : !separates(text[end]))) ++end;
    words.emplace_back(quote != '\0' ? text.substr(i + 1, end - i - 1) : text.substr(i, end - i));
    i = end + (quote != '\0' ? 1 : 0);
  }
  return words;
}

Blend parse_blend(const std::vector<std::string>& words, const std::string& key) {
  if (words.empty())
    raise<ConfigError>("{} does not name a corpus\n  try: {}=PREFIX of PREFIX.bin and PREFIX.idx",
                       key, key);
  Blend blend;
  size_t numbers = 0;
  for (size_t i = 0; words.size() % 2 == 0 && i < words.size(); i += 2) {
    if (const auto weight = as_number(words[i])) {
      ++numbers;
      blend.weights.push_back(*weight);
      blend.prefixes.push_back(words[i + 1]);
    }
  }
  if (numbers == 0) return {words, {}};
  if (numbers != words.size() / 2) {
    raise<ConfigError>(
        "{} has weights for only some of its corpora\n  try: a weight before every prefix, "
        "or none",
        key);
  }
  for (const double weight : blend.weights) {
    if (!(weight > 0) || !std::isfinite(weight))
      raise<ConfigError>("{} has the weight {}, which is not positive\n  try: a weight above 0 "
                         "before every prefix, or no weights",
                         key, weight);
  }
  return blend;
}

std::vector<double> normalized(std::vector<double> weights) {
  const double sum = numpy_sum(weights);
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::vector<int64_t> blend_sizes(std::span<const double> weights, int64_t size, double surplus) {
  std::vector<int64_t> sizes;
  for (const double weight : weights) {
    const double share = std::ceil(static_cast<double>(size) * weight);
    sizes.push_back(static_cast<int64_t>(std::ceil(share * (1 + surplus))));
  }
  return sizes;
}

BlendOrder::BlendOrder(std::vector<double> weights, std::vector<int64_t> limits)
    : weights_(std::move(weights)), limits_(std::move(limits)), recent_(kRecentBlocks) {
  if (weights_.empty() || weights_.size() > kMostDatasets)
    raise<ConfigError>("a blend of {} datasets is not supported: 1 to {} are", weights_.size(),
                       kMostDatasets);
  taken_.emplace_back(weights_.size());
}

int32_t BlendOrder::choose(int64_t n, const std::vector<int64_t>& taken) const {
  const double so_far = std::max(static_cast<double>(n), 1.0);
  double most = std::numeric_limits<double>::lowest();
  int32_t chosen = 0;
  for (size_t d = 0; d < weights_.size(); ++d) {
    if (!limits_.empty() && taken[d] >= limits_[d]) continue;
    const double behind = weights_[d] * so_far - static_cast<double>(taken[d]);
    if (behind > most) {
      most = behind;
      chosen = static_cast<int32_t>(d);
    }
  }
  return chosen;
}

std::shared_ptr<const BlendOrder::Block> BlendOrder::make_block(int64_t number) const {
  auto block = std::make_shared<Block>();
  block->number = number;
  block->places.resize(kBlock);
  std::vector<int64_t> taken = taken_[static_cast<size_t>(number)];
  for (int64_t k = 0; k < kBlock; ++k) {
    const int32_t chosen = choose(number * kBlock + k, taken);
    block->places[static_cast<size_t>(k)] = {chosen, taken[static_cast<size_t>(chosen)]++};
  }
  if (static_cast<size_t>(number) + 1 == taken_.size()) taken_.push_back(std::move(taken));
  return block;
}

BlendOrder::Place BlendOrder::operator()(int64_t n) const {
  PT_DCHECK(n >= 0);
  const int64_t number = n / kBlock;
  std::shared_ptr<const Block> block;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Block>& recent = recent_[static_cast<size_t>(number) % kRecentBlocks];
    if (recent == nullptr || recent->number != number) {
      while (static_cast<int64_t>(taken_.size()) <= number)
        make_block(static_cast<int64_t>(taken_.size()) - 1);
      recent = make_block(number);
    }
    block = recent;
  }
  return block->places[static_cast<size_t>(n % kBlock)];
}

int64_t BlendedSamples::samples_per_epoch() const {
  int64_t sum = 0;
  for (const auto& part : parts_) sum += part->samples_per_epoch();
  return sum;
}

int64_t BlendedDataset::samples_per_epoch() const {
  int64_t sum = 0;
  for (const auto& part : parts_) sum += part->samples_per_epoch();
  return sum;
}

void BlendedDataset::sample(int64_t n, int64_t* tokens) const {
  if (n < 0 || (size_ && n >= *size_))
    raise<DataError>("the blend has {} samples, so sample {} does not exist", size_.value_or(0),
                     n + 1);
  const BlendOrder::Place place = order_(n);
  parts_[static_cast<size_t>(place.dataset)]->sample(place.sample, tokens);
}

void BlendedDataset::sample_with_mask(int64_t n, int64_t* tokens, uint8_t* loss_mask) const {
  if (n < 0 || (size_ && n >= *size_))
    raise<DataError>("the blend has {} samples, so sample {} does not exist", size_.value_or(0),
                     n + 1);
  const BlendOrder::Place place = order_(n);
  parts_[static_cast<size_t>(place.dataset)]->sample_with_mask(place.sample, tokens, loss_mask);
}

} // namespace pentatron::data
