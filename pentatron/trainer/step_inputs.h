/// A batch as a model takes it: made in the host's memory, cut to what the rank has, then copied to
/// its device without a wait.
#pragma once

#include <string>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/data/batch.h"
#include "pentatron/models/model_spec.h"
#include "pentatron/nn/context.h"

namespace pentatron::trainer {

/// As a model of these streams takes it.
nn::Microbatch model_input(const data::Batch& batch, const std::vector<std::string>& streams,
                           at::Device device);

/// Takes this context rank's part of each sample. `streams`: names of the layouts.
void cut_context(nn::Microbatch& input, const data::Batch& batch,
                 const std::vector<std::string>& streams, const comm::Group& context);

/// Microbatch::labelled_rows of each of the model's terms, of an input in the host's memory.
void find_labelled_rows(nn::Microbatch& input, const models::ModelSpec& spec);

/// Tokens whose logits the losses compute together, by the rule of find_labelled_rows().
struct HeadRows {
  int64_t computed = 0;
  int64_t real = 0; ///< without padding
};
/// Of a microbatch on all of its context ranks.
HeadRows count_head_rows(const data::Batch& batch, const models::ModelSpec& spec,
                         int context_ranks);

/// An input in the host's memory, on `device`.
nn::Microbatch on_device(nn::Microbatch input, at::Device device);

} // namespace pentatron::trainer
