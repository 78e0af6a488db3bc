/// How well a model of whole texts (classes, numbers) predicts the labels of files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/checkpoint/model_source.h"
#include "pentatron/data/config.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/evaluation.h"

namespace pentatron::trainer {

struct LabelScoring {
  Precision dtype = Precision::kFp32;
  DeviceKind device = DeviceKind::kAuto;
  int64_t context = 0; ///< longer texts are cut to so many tokens; 0: the model's context
};

struct LabelScore {
  Evaluation evaluation; ///< the figures that validation of a run shows
  int64_t samples = 0;
};

/// `dataset` names files for validation alone, with dataset.type=classification; names of classes
/// are the model's. Throws DataError for a label that is not a class of the model, ConfigError if
/// options.context is out of range.
LabelScore score_labels(checkpoint::ModelSource& source,
                        const std::shared_ptr<const data::Tokenizer>& tokenizer,
                        const data::DatasetConfig& dataset, const LabelScoring& options);

} // namespace pentatron::trainer
