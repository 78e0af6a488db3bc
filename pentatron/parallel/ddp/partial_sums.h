/// Sums over tensor-parallel ranks of gradients that are addends there: norms under sequence
/// parallel, key and value heads that several ranks hold. Frozen parameters have none.
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

  /// Collectives: one all-reduce for each type of gradients, none if nothing is Partial.
  void sum() const;

 private:
  struct Joined {                  // of one type
    std::vector<at::Tensor> parts; // views of the gradients
    at::Tensor all;
  };

  std::vector<at::Tensor>& parts_of(at::ScalarType type);

  comm::Group group_;
  std::vector<Joined> joined_;
};

} // namespace pentatron::parallel
