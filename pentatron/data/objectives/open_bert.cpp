#include "pentatron/data/objectives/open_bert.h"

#include <array>
#include <filesystem>
#include <map>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/gpt/blend.h"
#include "pentatron/data/gpt/data_paths.h"
#include "pentatron/data/gpt/gpt_dataset.h"
#include "pentatron/data/objectives/bert_dataset.h"
#include "pentatron/data/objectives/special_tokens.h"

namespace pentatron::data {

namespace {

constexpr std::array<Part, 3> kAllParts{Part::kTrain, Part::kValidation, Part::kTest};

/// `added`: the tokens above the vocabulary.
BertDataset::Options bert_options(const DatasetConfig& config, const DatasetContext& context,
                                  std::string& added) {
  const Tokenizer& tokenizer = *context.tokenizer;
  SpecialTokens special(tokenizer);
  BertDataset::Options options{.sequence_length = context.sequence_length,
                               .seed = config.seed,
                               .short_sequence_rate = config.short_seq_prob,
                               .head = config.bert_binary_head};
  options.pad_token = special.find("dataset.pad_token", config.pad_token, kPadNames);
  options.cls_token = special.find("dataset.cls_token", config.cls_token, kClsNames);
  options.sep_token = special.find("dataset.sep_token", config.sep_token, kSepNames);
  options.mask = {.rate = config.mask_prob,
                  .mask_token = special.find("dataset.mask_token", config.mask_token, kMaskNames),
                  .vocab_size = tokenizer.vocab_size(),
                  .max_ngram = config.masking_max_ngram};
  special.check(context.vocab_size);
  added = special.added_text();
  options.mask.is_special = [tokens = context.tokenizer](int64_t token) {
    return token >= tokens->vocab_size() || tokens->is_special(token);
  };
  if (config.masking_do_full_word) {
    options.mask.continues_word = [continues = continuing_tokens(tokenizer)](int64_t token) {
      return token < std::ssize(continues) && continues[static_cast<size_t>(token)];
    };
  }
  return options;
}

/// A part of some sentences; null if there are none. A training part without any is an error of
/// BertDataset.
std::shared_ptr<const Dataset> bert_part(const std::shared_ptr<const Sentences>& sentences,
                                         StreamRange range, Part part,
                                         BertDataset::Options options) {
  if (range.size() == 0 && part != Part::kTrain) return nullptr;
  options.name = std::string(name_of(part));
  return std::make_shared<BertDataset>(sentences, range, options);
}

StreamRange range_of(const Split& split, Part part) {
  return part == Part::kTrain        ? split.train
         : part == Part::kValidation ? split.validation
                                     : split.test;
}

Datasets bert_from_text(const DatasetConfig& config, const DatasetContext& context,
                        const BertDataset::Options& options) {
  Datasets sets;
  const auto corpus =
      std::make_shared<const Corpus>(config, context.tokenizer, Corpus::Cut::kSentences);
  sets.corpus = corpus;
  sets.split = split_corpus(*corpus, config.split);
  sets.summary = corpus->report().to_string();
  sets.files = corpus->files();
  const auto sentences = std::make_shared<const CorpusSentences>(corpus);
  sets.summary += fmt::format(", {}", counted(sentences->num_sentences(), "sentence"));
  for (const Part part : kAllParts) {
    const StreamRange tokens = range_of(sets.split, part);
    sets.set(part, bert_part(sentences, sentences_in(*corpus, tokens), part, options),
             size_of_part(*corpus, tokens));
  }
  return sets;
}

/// Opens corpora once, and their blends for each part.
class BertCorpora {
 public:
  BertCorpora(const DatasetConfig& config, const DatasetContext& context,
              const BertDataset::Options& options)
      : config_(config), context_(context), options_(options), paths_(find_data_paths(config)) {}

  Datasets open() {
    Datasets sets;
    for (const Part part : kAllParts) {
      const auto& own = paths_.parts[static_cast<size_t>(part)];
      const Blend* blend = paths_.shared ? &*paths_.shared : own ? &*own : nullptr;
      if (blend == nullptr) continue;
      size_ = {};
      if (part == Part::kValidation && config_.multiple_validation_sets) {
        for (const std::string& prefix : blend->prefixes) {
          if (auto one = single(prefix, part))
            sets.validation_sets.push_back(
                {std::filesystem::path(prefix).filename().string(), std::move(one)});
        }
        sets.set(part, sets.validation_sets.empty() ? nullptr : sets.validation_sets[0].dataset,
                 size_);
      } else {
        auto all = blended(*blend, part);
        sets.set(part, std::move(all), size_);
      }
    }
    sets.summary = counted(std::ssize(corpora_), "indexed corpus", "indexed corpora");
    for (const auto& [prefix, data] : corpora_) {
      sets.summary +=
          fmt::format(", {}: {}, {}", prefix, counted(data->num_documents(), "document"),
                      counted(data->num_sequences(), "sentence"));
      for (const RandomAccessFile* file : {&data->data_file(), &data->index_file()})
        sets.files.push_back(file->path());
    }
    return sets;
  }

 private:
  std::shared_ptr<const Dataset> single(const std::string& prefix, Part part) {
    auto& corpus = corpora_[prefix];
    if (corpus == nullptr) corpus = std::make_shared<const IndexedDataset>(prefix);
    const IndexedStream stream(corpus, context_.vocab_size);
    StreamRange tokens{0, corpus->num_tokens()};
    if (paths_.shared) tokens = range_of(split_corpus(stream, config_.split), part);
    const PartSize size = size_of_part(stream, tokens);
    size_.documents += size.documents;
    size_.tokens += size.tokens;
    return bert_part(std::make_shared<const IndexedSentences>(corpus, context_.vocab_size),
                     sentences_in(*corpus, tokens), part, options_);
  }

  std::shared_ptr<const Dataset> blended(const Blend& blend, Part part) {
    std::vector<std::shared_ptr<const Dataset>> parts;
    std::vector<double> weights;
    for (size_t i = 0; i < blend.prefixes.size(); ++i) {
      auto one = single(blend.prefixes[i], part);
      if (one == nullptr) continue;
      weights.push_back(blend.weights.empty() ? static_cast<double>(one->samples_per_epoch())
                                              : blend.weights[i]);
      parts.push_back(std::move(one));
    }
    if (parts.size() < 2) return parts.empty() ? nullptr : parts.front();
    return std::make_shared<BlendedSamples>(std::move(parts), normalized(std::move(weights)));
  }

  const DatasetConfig& config_;
  const DatasetContext& context_;
  BertDataset::Options options_;
  DataPaths paths_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> corpora_;
  PartSize size_; ///< of the part that is being opened
};

} // namespace

Datasets open_bert(const DatasetConfig& config, const DatasetContext& context) {
  std::string added;
  const BertDataset::Options options = bert_options(config, context, added);
  Datasets sets = names_corpora(config) ? BertCorpora(config, context, options).open()
                                        : bert_from_text(config, context, options);
  if (!added.empty()) sets.summary += "\n  tokens above the vocabulary: " + added;
  return sets;
}

} // namespace pentatron::data
