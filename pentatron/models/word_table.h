/// What a model does with its word table (kWordTable), beside looking up the input's tokens.
#pragma once

#include "pentatron/models/model_config.h"

namespace pentatron::models {

/// Whether it predicts tokens. Without, an encoder's settings may say that the output layer is
/// tied.
bool has_output_layer(const ModelConfig& config);

/// Whether the output layer is a product with one matrix, the word table or one of its own. Those
/// of masked language models transform the hidden states first, and have a bias.
bool has_plain_output_layer(const ModelConfig& config);

/// Whether encoder and decoder look tokens up in one word table.
bool encoder_and_decoder_share_words(const ModelConfig& config);

} // namespace pentatron::models
