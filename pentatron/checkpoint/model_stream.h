/// Streams the values of a model block by block, in the order and type that a file needs.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/checkpoint/model_source.h"

namespace pentatron::checkpoint {

using ByteSink = std::function<void(std::span<const std::byte>)>;

/// Hands all rows of a parameter to `sink` as bytes of `dtype`, in blocks of some megabytes. Throws
/// CheckpointError, naming the parameter, if a finite value becomes infinite in `dtype`.
void stream_param(ModelSource& source, const std::string& param, SafeDtype dtype,
                  const ByteSink& sink);

/// The same of the part that a Hugging Face tensor is. One in another order comes in blocks: its
/// slices, or whole.
void stream_entry(ModelSource& source, const WeightMapEntry& entry, SafeDtype dtype,
                  const ByteSink& sink);

/// Which tensors go into which file: neighbours together, up to `max_bytes` in each; a larger
/// tensor has a file of its own.
std::vector<std::vector<size_t>> group_by_size(const std::vector<uint64_t>& bytes,
                                               uint64_t max_bytes);

} // namespace pentatron::checkpoint
