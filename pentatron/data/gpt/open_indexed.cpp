#include "pentatron/data/gpt/open_indexed.h"

#include <algorithm>
#include <numeric>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/gpt/gpt_dataset.h"
#include "pentatron/data/gpt/index_cache.h"
#include "pentatron/data/gpt/named_corpora.h"
#include "pentatron/data/token_stream.h"

namespace pentatron::data {

namespace {

constexpr double kSurplus = 0.005; // what Megatron builds beyond a dataset's share of a blend

/// Where sequence i begins in the stream of all tokens; also for the end.
int64_t token_place(const IndexedDataset& data, int64_t i) {
  return i == data.num_sequences() ? data.num_tokens() : data.sequence(i).first_token;
}

class Opener {
 public:
  Opener(const DatasetConfig& config, const DatasetContext& context)
      : config_(config), context_(context), corpora_(config, context.reading.working) {}

  TokenDatasets open(Datasets& about) {
    TokenDatasets sets;
    sets.train = part(Part::kTrain, context_.train_samples);
    if (sets.train == nullptr) {
      raise<ConfigError>("the training data is less than one sample\n  try: another "
                         "dataset.split, more text or a shorter sequence");
    }
    const auto validation_samples =
        config_.full_validation ? std::nullopt : context_.validation_samples;
    if (config_.multiple_validation_sets) {
      sets.validation_sets = several(validation_samples);
      if (!sets.validation_sets.empty()) sets.validation = sets.validation_sets[0].dataset;
    } else {
      sets.validation = part(Part::kValidation, validation_samples);
    }
    sets.test = part(Part::kTest, context_.test_samples);
    corpora_.describe(about);
    about.summary = summary();
    return sets;
  }

 private:
  /// Of one corpus; null if it has less than a sample.
  std::shared_ptr<const TokenDataset> single(const std::string& prefix, Part p,
                                             std::optional<int64_t> samples) {
    const auto data = corpora_.open(prefix);
    if (!is_integer(data->dtype())) {
      raise<DataError>("{}.idx: dtype is {}, which cannot hold token ids", prefix,
                       name_of(data->dtype()));
    }
    return config_.order == SampleOrder::kMegatron ? megatron(data, p, samples) : stable(data, p);
  }

  std::shared_ptr<const TokenDataset> megatron(const std::shared_ptr<const IndexedDataset>& data,
                                               Part p, std::optional<int64_t> samples) {
    const SequenceRange range = corpora_.separate()
                                    ? SequenceRange{0, data->num_sequences()}
                                    : megatron_split(config_.split, data->num_sequences(), p);
    const StreamRange place{token_place(*data, range.begin), token_place(*data, range.end)};
    const int64_t tokens = place.size();
    if (samples != 0) corpora_.count(p, IndexedStream(data, context_.vocab_size), place);
    const bool drop_last = p != Part::kValidation || config_.drop_last_partial_validation_sequence;
    // Several epochs of a small part make samples too, as long as there is a token.
    const int64_t least = samples.value_or(0) > 0 ? 1
                          : drop_last             ? context_.sequence_length + 1
                                                  : 2;
    if (tokens < least || samples == 0) {
      if (tokens > 0 && samples != 0) note_short(p, data->prefix(), tokens);
      return nullptr;
    }
    const GptIndexOptions options{.sequence_length = context_.sequence_length,
                                  .num_samples = samples,
                                  .seed = config_.seed,
                                  .drop_last_partial_sequence = drop_last,
                                  .name =
                                      fmt::format("the {} part of {}", name_of(p), data->prefix())};
    const SequenceLengths lengths{.first_sequence = range.begin,
                                  .count = range.end - range.begin,
                                  .read = [&](int64_t begin, std::span<int32_t> out) {
                                    corpora_.tell_working();
                                    data->read_lengths(range.begin + begin, out);
                                  }};
    return std::make_shared<GptDataset>(data,
                                        shared_gpt_index(config_.data_cache_path, lengths, options,
                                                         context_.writes_nothing, context_.store),
                                        context_.vocab_size);
  }

  std::shared_ptr<const TokenDataset> stable(const std::shared_ptr<const IndexedDataset>& data,
                                             Part p) {
    const auto stream = std::make_shared<const IndexedStream>(data, context_.vocab_size);
    const StreamRange range = corpora_.range(*stream, p);
    corpora_.count(p, *stream, range);
    if (range.size() <= context_.sequence_length) {
      if (range.size() > 0) note_short(p, data->prefix(), range.size());
      return nullptr;
    }
    return std::make_shared<TextDataset>(
        stream, range,
        TextDataset::Options{.sequence_length = context_.sequence_length,
                             .seed = config_.seed,
                             .name = std::string(name_of(p))});
  }

  std::shared_ptr<const TokenDataset> part(Part p, std::optional<int64_t> samples) {
    const Blend* blend = corpora_.blend(p);
    if (blend == nullptr) return nullptr;
    // As Megatron: a path of a part alone has no use for a weight.
    if (blend->prefixes.size() == 1 && (blend->weights.empty() || corpora_.separate()))
      return single(blend->prefixes[0], p, samples);
    return config_.order == SampleOrder::kMegatron ? blended_megatron(*blend, p, samples)
                                                   : blended_stable(*blend, p);
  }

  std::shared_ptr<const TokenDataset> blended_megatron(const Blend& blend, Part p,
                                                       std::optional<int64_t> samples) {
    const bool weighted = !blend.weights.empty();
    if (weighted && !samples) {
      if (p == Part::kTest || (p == Part::kValidation && !config_.full_validation)) return nullptr;
      raise<ConfigError>(
          "the {} data has weights, which have no effect when all samples are read\n  try: "
          "dataset.full_validation=false, or the corpora without weights",
          name_of(p));
    }
    if (samples == 0) return nullptr;
    const std::vector<double> weights = normalized(blend.weights);
    const std::vector<int64_t> asked =
        weighted ? blend_sizes(weights, *samples, kSurplus) : std::vector<int64_t>{};
    std::vector<std::shared_ptr<const TokenDataset>> parts;
    std::vector<double> sizes;
    std::string missing;
    int64_t total = 0;
    for (size_t i = 0; i < blend.prefixes.size(); ++i) {
      auto one = single(blend.prefixes[i], p, weighted ? std::optional(asked[i]) : std::nullopt);
      if (one == nullptr) {
        missing = blend.prefixes[i];
        continue;
      }
      sizes.push_back(static_cast<double>(*one->size()));
      total += *one->size();
      parts.push_back(std::move(one));
    }
    if (parts.empty()) return nullptr;
    if (weighted && !missing.empty()) no_part_of_blend(p, missing);
    if (weighted) {
      const std::vector<int64_t> drawn = blend_sizes(weights, *samples, 0);
      return std::make_shared<BlendedDataset>(
          std::move(parts), normalized(weights),
          std::accumulate(drawn.begin(), drawn.end(), int64_t{0}));
    }
    if (samples) {
      return std::make_shared<BlendedDataset>(std::move(parts), normalized(sizes),
                                              std::min(*samples, total));
    }
    std::vector<double> shares;
    for (const double size : sizes) shares.push_back(size / static_cast<double>(total));
    return std::make_shared<BlendedDataset>(std::move(parts), std::move(shares), total,
                                            std::vector<int64_t>(sizes.begin(), sizes.end()));
  }

  std::shared_ptr<const TokenDataset> blended_stable(const Blend& blend, Part p) {
    auto [parts, weights] = weighted_parts<TokenDataset>(
        blend, p, [&](const std::string& prefix) { return single(prefix, p, std::nullopt); });
    if (parts.empty()) return nullptr;
    return std::make_shared<BlendedDataset>(std::move(parts), normalized(std::move(weights)),
                                            std::nullopt);
  }

  std::vector<TokenDatasets::Named> several(std::optional<int64_t> samples) {
    const Blend* blend = corpora_.blend(Part::kValidation);
    if (blend == nullptr || !corpora_.separate()) return {};
    return separate_sets<TokenDatasets::Named>(*blend, [&](const std::string& prefix) {
      return single(prefix, Part::kValidation, samples);
    });
  }

  void note_short(Part p, const std::string& prefix, int64_t tokens) {
    notes_ += fmt::format("\n  no {} data of {}: {}, less than one sample", name_of(p), prefix,
                          counted(tokens, "token"));
  }

  std::string summary() const {
    int64_t documents = 0;
    int64_t tokens = 0;
    for (const auto& [prefix, data] : corpora_.opened()) {
      documents += data->num_documents();
      tokens += data->num_tokens();
    }
    return fmt::format("{}, {}, {}{}",
                       counted(std::ssize(corpora_.opened()), "indexed corpus", "indexed corpora"),
                       counted(documents, "document"), counted(tokens, "token"), notes_);
  }

  const DatasetConfig& config_;
  const DatasetContext& context_;
  NamedCorpora corpora_;
  std::string notes_;
};

} // namespace

TokenDatasets open_indexed(const DatasetConfig& config, const DatasetContext& context,
                           Datasets& about) {
  if (context.sequence_length < 1)
    raise<ConfigError>("sequence length {} is not positive", context.sequence_length);
  return Opener(config, context).open(about);
}

} // namespace pentatron::data
