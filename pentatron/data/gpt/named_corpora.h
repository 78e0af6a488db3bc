/// The indexed corpora that a configuration names, and what each part of the data has of them.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pentatron/data/dataset.h"
#include "pentatron/data/gpt/data_paths.h"
#include "pentatron/data/indexed/indexed_dataset.h"

namespace pentatron::data {

class NamedCorpora {
 public:
  /// `working`: see ReadingProgress; called whenever a part opens a corpus. It may be empty.
  NamedCorpora(const DatasetConfig& config, std::function<void()> working)
      : config_(config), paths_(find_data_paths(config)), working_(std::move(working)) {}

  /// Whether each part has separate corpora; otherwise dataset.split divides every corpus.
  bool separate() const { return !paths_.shared; }
  /// The corpora of a part; null if it has none.
  const Blend* blend(Part part) const;

  /// Opens a corpus once.
  std::shared_ptr<const IndexedDataset> open(const std::string& prefix);
  /// Says that work on a corpus goes on.
  void tell_working() const {
    if (working_) working_();
  }
  /// The range of a corpus that belongs to the part, in the stable order.
  StreamRange range(const TokenStream& corpus, Part part) const;
  /// Adds this range to the size of the part.
  void count(Part part, const TokenStream& corpus, StreamRange range);

  /// Sizes and files of the opened corpora.
  void describe(Datasets& about) const;
  const std::map<std::string, std::shared_ptr<const IndexedDataset>>& opened() const {
    return opened_;
  }

 private:
  /// "dataset.path=" or the key of the part that names the corpus, for messages.
  std::string key_of(const std::string& prefix) const;

  const DatasetConfig& config_;
  DataPaths paths_;
  std::function<void()> working_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> opened_;
  std::array<PartSize, 3> sizes_ = {};
};

/// A corpus of a blend that has a weight but not a sample. Throws ConfigError.
[[noreturn]] void no_part_of_blend(Part part, const std::string& prefix);
/// Throws ConfigError if corpora of dataset.multiple_validation_sets have weights.
void check_separate_sets(const Blend& blend);

/// The corpora of a part whose dataset `open(prefix)` is not null, with their weights: their
/// samples in an epoch if the blend has none. Throws ConfigError if a corpus with a weight is
/// null.
template <class D> struct WeightedParts {
  std::vector<std::shared_ptr<const D>> parts;
  std::vector<double> weights;
};
template <class D, class Open>
WeightedParts<D> weighted_parts(const Blend& blend, Part part, const Open& open) {
  WeightedParts<D> out;
  std::string missing;
  for (size_t i = 0; i < blend.prefixes.size(); ++i) {
    std::shared_ptr<const D> one = open(blend.prefixes[i]);
    if (one == nullptr) {
      missing = blend.prefixes[i];
      continue;
    }
    out.weights.push_back(blend.weights.empty() ? static_cast<double>(one->samples_per_epoch())
                                                : blend.weights[i]);
    out.parts.push_back(std::move(one));
  }
  if (!out.parts.empty() && !blend.weights.empty() && !missing.empty())
    no_part_of_blend(part, missing);
  return out;
}

/// The sets of dataset.multiple_validation_sets: those whose dataset `open(prefix)` is not null.
template <class Named, class Open>
std::vector<Named> separate_sets(const Blend& blend, const Open& open) {
  check_separate_sets(blend);
  std::vector<Named> sets;
  for (const std::string& prefix : blend.prefixes) {
    if (auto one = open(prefix))
      sets.push_back({std::filesystem::path(prefix).filename().string(), std::move(one)});
  }
  return sets;
}

} // namespace pentatron::data
