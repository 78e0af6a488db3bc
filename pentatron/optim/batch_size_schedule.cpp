#include "pentatron/optim/batch_size_schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::optim {

namespace {

constexpr int64_t kMaxBatch = int64_t{1} << 30; ///< as train.global_batch_size

constexpr std::string_view kStepKey = "train.step_batch_size_schedule";

/// "250B" or "1.5T" as a whole number of tokens.
std::optional<int64_t> parse_tokens(std::string_view text) {
  double scale = 1;
  if (!text.empty()) {
    switch (text.back()) {
    case 'k':
    case 'K':
      scale = 1e3;
      break;
    case 'm':
    case 'M':
      scale = 1e6;
      break;
    case 'b':
    case 'B':
      scale = 1e9;
      break;
    case 't':
    case 'T':
      scale = 1e12;
      break;
    default:
      break;
    }
  }
  if (scale > 1) text.remove_suffix(1);
  if (text.empty() || text.find_first_not_of("0123456789.") != std::string_view::npos) return {};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  value *= scale;
  if (error != std::errc() || end != text.data() + text.size()) return {};
  if (value != std::floor(value) || value > 0x1p62) return {};
  return static_cast<int64_t>(value);
}

std::optional<int64_t> parse_size(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return {};
  return value;
}

} // namespace

BatchSizeSchedule BatchSizeSchedule::constant(int64_t batch_size) {
  if (batch_size < 1) {
    raise<ConfigError>(
        "train.global_batch_size={} is not positive\n  try: train.global_batch_size=1", batch_size);
  }
  return BatchSizeSchedule({{0, batch_size}});
}

BatchSizeSchedule BatchSizeSchedule::by_tokens(std::string_view text, int64_t sequence_length) {
  if (sequence_length < 1) {
    raise<ConfigError>("the sequence length {} is not positive", sequence_length);
  }
  std::string spaced(text);
  std::ranges::replace_if(
      spaced, [](char c) { return c == ',' || c == '\t' || c == '\n'; }, ' ');
  std::vector<Step> steps;
  int64_t last_tokens = -1;
  for (const std::string_view part : split(spaced, ' ')) {
    if (part.empty()) continue;
    const size_t colon = part.find(':');
    std::optional<int64_t> tokens;
    std::optional<int64_t> size;
    if (colon != std::string_view::npos) {
      tokens = parse_tokens(part.substr(0, colon));
      size = parse_size(part.substr(colon + 1));
    }
    if (!tokens || !size || *size > kMaxBatch) {
      raise<ConfigError>("{}: '{}' is not TOKENS:BATCH\n  try: {}=\"0:768 250B:1536\"", kStepKey,
                         excerpt(part), kStepKey);
    }
    if (steps.empty() ? *tokens != 0 : *tokens <= last_tokens) {
      raise<ConfigError>("{}: the threshold of '{}' does not {}\n  try: {}=\"0:768 250B:1536\"",
                         kStepKey, excerpt(part),
                         steps.empty() ? "begin with 0" : "exceed the previous threshold",
                         kStepKey);
    }
    const int64_t from = *tokens / sequence_length;
    if (!steps.empty() && from <= steps.back().from_samples) {
      raise<ConfigError>(
          "{}: '{}' is less than one sequence of {} tokens after the previous threshold\n  try: "
          "{}=\"0:768 250B:1536\"",
          kStepKey, excerpt(part), sequence_length, kStepKey);
    }
    last_tokens = *tokens;
    steps.push_back({from, *size});
  }
  if (steps.empty()) {
    raise<ConfigError>("{}='{}' is empty\n  try: {}=\"0:768 250B:1536\"", kStepKey, excerpt(text),
                       kStepKey);
  }
  return BatchSizeSchedule(std::move(steps));
}

BatchSizeSchedule BatchSizeSchedule::ramp_up(int64_t start, int64_t increment, int64_t samples,
                                             int64_t final_size) {
  const std::string value =
      fmt::format("train.rampup_batch_size=[{}, {}, {}]", start, increment, samples);
  if (start < 1 || increment < 1 || samples < 1) {
    raise<ConfigError>(
        "{} contains a number that is not positive\n  try: train.rampup_batch_size=[]", value);
  }
  if (final_size <= start || (final_size - start) % increment != 0) {
    const int64_t works = start + config::nearest_multiple(increment, final_size - start);
    raise<ConfigError>("{} does not reach train.global_batch_size={} in equal increments\n  try: "
                       "train.global_batch_size={}",
                       value, final_size, works);
  }
  const int64_t count = (final_size - start) / increment;
  std::vector<Step> steps;
  for (int64_t k = 0; k <= count; ++k) {
    const auto position = static_cast<__int128>(k) * samples; // over count, rounded up
    const auto from = static_cast<int64_t>((position + count - 1) / count);
    if (!steps.empty() && steps.back().from_samples == from) steps.pop_back();
    steps.push_back({from, start + k * increment});
  }
  return BatchSizeSchedule(std::move(steps));
}

int64_t BatchSizeSchedule::at_samples(int64_t consumed_samples) const {
  const auto after = std::ranges::upper_bound(steps_, consumed_samples, {}, &Step::from_samples);
  return after == steps_.begin() ? steps_.front().batch_size : std::prev(after)->batch_size;
}

int64_t BatchSizeSchedule::samples_after(int64_t iterations) const {
  int64_t consumed = 0;
  for (size_t i = 0; i < steps_.size() && iterations > 0; ++i) {
    int64_t count = iterations;
    if (i + 1 < steps_.size()) {
      const int64_t left = std::max<int64_t>(0, steps_[i + 1].from_samples - consumed);
      count = std::min(iterations, (left + steps_[i].batch_size - 1) / steps_[i].batch_size);
    }
    consumed += count * steps_[i].batch_size;
    iterations -= count;
  }
  return consumed;
}

int64_t BatchSizeSchedule::iterations_for(int64_t samples) const {
  int64_t consumed = 0;
  int64_t iterations = 0;
  for (size_t i = 0; i < steps_.size() && consumed < samples; ++i) {
    const bool last = i + 1 == steps_.size();
    const int64_t until = last ? samples : std::min(samples, steps_[i + 1].from_samples);
    const int64_t left = std::max<int64_t>(0, until - consumed);
    const int64_t count = (left + steps_[i].batch_size - 1) / steps_[i].batch_size;
    consumed += count * steps_[i].batch_size;
    iterations += count;
  }
  return iterations;
}

std::string BatchSizeSchedule::working_size(int64_t micro_batch_size, int64_t data_parallel_size,
                                            std::string_view path) const {
  int64_t common = 0;
  for (const Step& step : steps_) common = std::gcd(common, step.batch_size);
  const int64_t unit = micro_batch_size * data_parallel_size;
  const int64_t last = steps_.back().batch_size;
  const int64_t multiple = std::min(config::nearest_multiple(unit, last), kMaxBatch / unit * unit);
  const std::string other_size = fmt::format("train.global_batch_size={}", multiple);
  constexpr int64_t kFar = 8; // a batch of so many times the samples is not what was meant
  const bool one_size = steps_.size() == 1 && path != kStepKey && multiple > 0;
  if (one_size && multiple / kFar <= last) return other_size;
  if (common % data_parallel_size == 0)
    return fmt::format("train.micro_batch_size={}",
                       config::nearest_divisor(common / data_parallel_size, micro_batch_size));
  if (one_size) return other_size;
  if (path == kStepKey) return fmt::format("{}=\"\"", kStepKey);
  if (multiple > 0) return "train.rampup_batch_size=[] and " + other_size;
  return fmt::format("train.micro_batch_size=1 and train.global_batch_size={}", data_parallel_size);
}

void BatchSizeSchedule::check(int64_t micro_batch_size, int64_t data_parallel_size,
                              config::Violations& violations, std::string_view path) const {
  const int64_t unit = micro_batch_size * data_parallel_size;
  if (unit < 1) return;
  const std::string remedy = working_size(micro_batch_size, data_parallel_size, path);
  for (const Step& step : steps_) {
    if (step.batch_size % unit == 0) continue;
    violations.add(path,
                   fmt::format("{}: the batch size {} is not a multiple of "
                               "train.micro_batch_size={} x data-parallel size {}",
                               path, step.batch_size, micro_batch_size, data_parallel_size),
                   remedy);
  }
}

} // namespace pentatron::optim
