#include "pentatron/data/objectives/open_bert.h"

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/data/gpt/blend.h"
#include "pentatron/data/gpt/named_corpora.h"
#include "pentatron/data/objectives/bert_dataset.h"
#include "pentatron/data/objectives/special_tokens.h"

namespace pentatron::data {

namespace {

/// `added`: a line of the summary about tokens above the vocabulary.
BertDataset::Options bert_options(const DatasetConfig& config, const DatasetContext& context,
                                  std::string& added) {
  const Tokenizer& tokenizer = *context.tokenizer;
  SpecialTokens special(tokenizer);
  BertDataset::Options options{.sequence_length = context.sequence_length,
                               .seed = config.seed,
                               .short_sequence_rate = config.short_seq_prob,
                               .head = config.bert_binary_head};
  const BertTokens tokens(config, special);
  options.pad_token = tokens.pad;
  options.cls_token = tokens.cls;
  options.sep_token = tokens.sep;
  options.mask = {.rate = config.mask_prob,
                  .mask_token = tokens.mask,
                  .vocab_size = tokenizer.vocab_size(),
                  .max_ngram = config.masking_max_ngram};
  special.check(context.vocab_size);
  added = special.summary();
  options.mask.is_special = [own = context.tokenizer](int64_t token) {
    return token >= own->vocab_size() || own->is_special(token);
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

Datasets bert_from_text(const DatasetConfig& config, const DatasetContext& context,
                        const BertDataset::Options& options) {
  Datasets sets;
  const auto corpus = shared_corpus(config, context.tokenizer, Corpus::Cut::kSentences);
  corpus->wait(context.reading);
  sets.corpus = corpus;
  sets.split = split_corpus(*corpus, config.split);
  sets.report = corpus->report();
  sets.summary = sets.report->to_string();
  sets.files = corpus->files();
  const auto sentences = std::make_shared<const CorpusSentences>(corpus);
  sets.summary += fmt::format(", {}", counted(sentences->num_sentences(), "sentence"));
  for (const Part part : kAllParts) {
    const StreamRange tokens = sets.split[part];
    sets[part] = bert_part(sentences, sentences_in(*corpus, tokens), part, options);
    sets.size(part) = size_of_part(*corpus, tokens);
  }
  return sets;
}

/// Tells once of corpora whose documents are one sequence each: they are not cut into sentences.
void tell_whole_documents(const NamedCorpora& corpora) {
  for (const auto& [prefix, corpus] : corpora.opened()) {
    if (corpus->num_documents() == 0 || corpus->num_sequences() != corpus->num_documents())
      continue;
    log::shared_warning(
        "{} has no boundaries of sentences: each of its {} is one sequence, so the two texts of a "
        "pair are cut anywhere\n  try: a corpus made with pentatron preprocess --split-sentences, "
        "or model.binary_head=false and dataset.bert_binary_head=none",
        prefix, counted(corpus->num_documents(), "document"));
    return;
  }
}

Datasets bert_from_corpora(const DatasetConfig& config, const DatasetContext& context,
                           const BertDataset::Options& options) {
  NamedCorpora corpora(config, context.reading.working);
  const auto single = [&](const std::string& prefix, Part part) {
    const std::shared_ptr<const IndexedDataset> corpus = corpora.open(prefix);
    const IndexedStream stream(corpus, context.vocab_size);
    const StreamRange tokens = corpora.range(stream, part);
    corpora.count(part, stream, tokens);
    return bert_part(std::make_shared<const IndexedSentences>(corpus, context.vocab_size),
                     sentences_in(*corpus, tokens), part, options);
  };
  Datasets sets;
  for (const Part part : kAllParts) {
    const Blend* blend = corpora.blend(part);
    if (blend == nullptr) continue;
    const auto open = [&](const std::string& prefix) { return single(prefix, part); };
    if (part == Part::kValidation && config.multiple_validation_sets) {
      sets.validation_sets = separate_sets<NamedDataset>(*blend, open);
      if (!sets.validation_sets.empty()) sets.validation = sets.validation_sets[0].dataset;
      continue;
    }
    auto [parts, weights] = weighted_parts<Dataset>(*blend, part, open);
    if (parts.empty()) continue;
    sets[part] = parts.size() == 1
                     ? parts[0]
                     : std::make_shared<BlendedSamples>(parts, normalized(std::move(weights)));
  }
  if (config.has_pairs()) tell_whole_documents(corpora);
  corpora.describe(sets);
  sets.summary = counted(std::ssize(corpora.opened()), "indexed corpus", "indexed corpora");
  for (const auto& [prefix, data] : corpora.opened()) {
    sets.summary += fmt::format(", {}: {}, {}", prefix, counted(data->num_documents(), "document"),
                                counted(data->num_sequences(), "sentence"));
  }
  return sets;
}

} // namespace

Datasets open_bert(const DatasetConfig& config, const DatasetContext& context) {
  std::string added;
  const BertDataset::Options options = bert_options(config, context, added);
  Datasets sets = names_corpora(config) ? bert_from_corpora(config, context, options)
                                        : bert_from_text(config, context, options);
  sets.summary += added;
  return sets;
}

} // namespace pentatron::data
