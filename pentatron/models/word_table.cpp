#include "pentatron/models/word_table.h"

namespace pentatron::models {

bool has_output_layer(const ModelConfig& config) {
  return config.type != ModelType::kBert || config.head == ModelHead::kMaskedLm;
}

bool has_plain_output_layer(const ModelConfig& config) {
  return config.type != ModelType::kBert;
}

bool encoder_and_decoder_share_words(const ModelConfig& config) {
  return config.type == ModelType::kT5;
}

} // namespace pentatron::models
