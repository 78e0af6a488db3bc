#include "pentatron/data/gpt/named_corpora.h"

#include "pentatron/base/error.h"

namespace pentatron::data {

const Blend* NamedCorpora::blend(Part part) const {
  if (paths_.shared) return &*paths_.shared;
  const auto& own = paths_.parts[static_cast<size_t>(part)];
  return own ? &*own : nullptr;
}

std::shared_ptr<const IndexedDataset> NamedCorpora::open(const std::string& prefix) {
  auto& entry = opened_[prefix];
  if (entry == nullptr) entry = std::make_shared<const IndexedDataset>(prefix);
  return entry;
}

StreamRange NamedCorpora::range(const TokenStream& corpus, Part part) const {
  if (separate()) return {0, corpus.size_tokens()};
  return split_corpus(corpus, config_.split)[part];
}

void NamedCorpora::count(Part part, const TokenStream& corpus, StreamRange range) {
  const PartSize size = size_of_part(corpus, range);
  sizes_[static_cast<size_t>(part)].documents += size.documents;
  sizes_[static_cast<size_t>(part)].tokens += size.tokens;
}

void NamedCorpora::describe(Datasets& about) const {
  for (const Part part : kAllParts) about.size(part) = sizes_[static_cast<size_t>(part)];
  for (const auto& [prefix, data] : opened_)
    for (const RandomAccessFile* file : {&data->data_file(), &data->index_file()})
      about.files.push_back(file->path());
}

void no_part_of_blend(Part part, const std::string& prefix) {
  raise<ConfigError>("{} has a weight, but less than one sample of {} data\n  try: another "
                     "dataset.split, or the blend without it",
                     prefix, name_of(part));
}

void check_separate_sets(const Blend& blend) {
  if (blend.weights.empty()) return;
  throw ConfigError(
      "dataset.multiple_validation_sets=true computes one loss for each corpus, so the "
      "validation data cannot have weights\n  try: the corpora without weights");
}

} // namespace pentatron::data
