#include "pentatron/data/gpt/named_corpora.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/naming.h"

namespace pentatron::data {

const Blend* NamedCorpora::blend(Part part) const {
  if (paths_.shared) return &*paths_.shared;
  const auto& own = paths_.parts[static_cast<size_t>(part)];
  return own ? &*own : nullptr;
}

std::shared_ptr<const IndexedDataset> NamedCorpora::open(const std::string& prefix) {
  tell_working();
  auto& entry = opened_[prefix];
  if (entry == nullptr)
    entry = naming(key_of(prefix), prefix,
                   [&] { return std::make_shared<const IndexedDataset>(prefix); });
  return entry;
}

std::string NamedCorpora::key_of(const std::string& prefix) const {
  if (paths_.shared) return "dataset.path=";
  if (const std::string& file = config_.per_split_data_args_path; !file.empty())
    return fmt::format("dataset.per_split_data_args_path={}: ", file);
  constexpr std::array kKeys{
      "dataset.train_data_path=", "dataset.valid_data_path=", "dataset.test_data_path="};
  for (size_t i = 0; i < kKeys.size(); ++i)
    if (const auto& own = paths_.parts[i];
        own && std::ranges::find(own->prefixes, prefix) != own->prefixes.end())
      return kKeys[i];
  return {};
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
