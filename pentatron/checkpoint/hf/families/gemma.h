/// What Gemma 2 and Gemma 3 have in common.
#pragma once

#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

/// All but the positions. Where config.json has no layer_types, every `full_every`-th layer has no
/// window.
models::ModelConfig read_gemma(const ConfigReader& in, int64_t full_every, int64_t max_positions);
Json write_gemma(const models::ModelConfig& c);
void name_gemma(const models::ModelConfig& c, TensorNames& out);

} // namespace pentatron::checkpoint
