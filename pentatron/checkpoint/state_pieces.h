/// The state of a run on one rank, as named flat pieces, and the boxes of them that it writes.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/checkpoint/placement.h"
#include "pentatron/checkpoint/sharded/shard_writer.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/parallel/ddp/data_parallel.h"

namespace pentatron::checkpoint {

/// In the manifest's state: Optimizer::first_steps(), if there are any.
inline constexpr const char* kFirstSteps = "first_steps";
/// Optimizer::bounds(), if there are any: what the scales of states follow from.
inline constexpr const char* kStateBounds = "state_bounds";

/// A flat piece of a parameter, or of something that the optimizer keeps of it.
struct StatePiece {
  const nn::Param* param = nullptr;
  std::string name; ///< of the tensor in the checkpoint: "<parameter>" or "<parameter>/<what>"
  nn::FlatRange range;
  at::Tensor data;        ///< flat, the storage that training uses
  comm::Group replicas;   ///< the ranks that hold the same
  at::Tensor values = {}; ///< of the optimizer's state: the parameter's values
};
/// Of parameters and buffers, or of adapters and what trains with them alone.
std::vector<StatePiece> value_pieces(const parallel::DataParallel& store, bool adapters_only);
std::vector<StatePiece> optimizer_pieces(optim::Optimizer& optimizer);

/// What a rank writes into one file: the entries, and for each the views that follow each other.
struct FilePlan {
  std::string name;
  std::vector<EntrySpec> entries;
  std::vector<std::vector<at::Tensor>> contents; ///< by entry; any device, any strides
  uint64_t data_bytes() const;
};

/// Over all ranks the plans hold every element once: of each piece a rank takes its share among
/// the replicas, of what it counts among all others.
FilePlan plan_file(const std::string& kind, const std::vector<StatePiece>& pieces,
                   const comm::Group& world);

} // namespace pentatron::checkpoint
