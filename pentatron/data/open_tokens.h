/// The parts of a dataset as tokens, before they become samples of a kind.
#pragma once

#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// Of dataset.type=text, indexed or mock, with documents rearranged by dataset.fim_rate. Sets what
/// was read in `about`. Throws DataError or ConfigError.
TokenDatasets open_tokens(const DatasetConfig& config, const DatasetContext& context,
                          Datasets& about);

/// What `make(tokens, part)` makes of the tokens of each part.
template <class F> void set_samples(const TokenDatasets& tokens, const F& make, Datasets& sets) {
  const auto samples = [&](const std::shared_ptr<const TokenDataset>& of_part,
                           Part part = Part::kValidation) -> std::shared_ptr<const Dataset> {
    return of_part == nullptr ? nullptr : make(of_part, part);
  };
  sets.train = samples(tokens.train, Part::kTrain);
  for (const TokenDatasets::Named& set : tokens.validation_sets)
    sets.validation_sets.push_back({set.name, samples(set.dataset)});
  sets.validation =
      sets.validation_sets.empty() ? samples(tokens.validation) : sets.validation_sets[0].dataset;
  sets.test = samples(tokens.test, Part::kTest);
}

} // namespace pentatron::data
