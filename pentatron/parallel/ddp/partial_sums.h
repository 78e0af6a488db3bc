/// Sums over tensor-parallel ranks of gradients that are addends there: norms under sequence
/// parallel, key and value heads that several ranks hold.
#pragma once

#include <string>
#include <vector>

#include "pentatron/comm/parallel_groups.h"
#include "pentatron/nn/param_store.h"

namespace pentatron::parallel {

class PartialSums {
 public:
  /// What the shards hold of parameters that are Partial over `axis`, whose group is asked for if
  /// there are any; its ranks' shards have the same pieces.
  PartialSums(const std::vector<nn::Shard>& shards, const std::string& axis,
              const comm::ParallelGroups& groups);

  /// Collectives: one all-reduce, none if nothing is Partial.
  void sum() const;

 private:
  comm::Group group_;
  std::vector<at::Tensor> parts_; // views of the gradients
  at::Tensor joined_;
};

} // namespace pentatron::parallel
