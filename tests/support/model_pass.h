/// One forward pass of a model that lies on this rank as a whole.
#pragma once

#include "pentatron/models/model.h"

#include <ATen/ATen.h>

#include <utility>

namespace pentatron::test {

/// Logits [T, V] of ids [T].
inline at::Tensor logits(const models::Model& model, nn::ParamStore& store, const at::Tensor& ids,
                         nn::SequenceLayout layout) {
  const nn::Microbatch batch{.fields = {{"input_ids", ids}}, .layouts = {std::move(layout)}};
  nn::PassResults results;
  nn::ForwardContext ctx{
      .batch = &batch, .wanted = {.loss = false, .logits = true}, .results = &results};
  nn::Flows flows;
  for (const nn::Chunk& chunk : model.chunks())
    flows = chunk.forward(std::move(flows), ctx, store, nullptr);
  return results.at("logits");
}

} // namespace pentatron::test
