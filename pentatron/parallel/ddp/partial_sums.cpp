#include "pentatron/parallel/ddp/partial_sums.h"

#include <ATen/ATen.h>

#include "pentatron/comm/collectives.h"
#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::parallel {

PartialSums::PartialSums(const std::vector<nn::Shard>& shards, const std::string& axis,
                         const comm::ParallelGroups& groups) {
  int64_t total = 0;
  for (const nn::Shard& shard : shards) {
    for (const nn::Piece& piece : shard.pieces) {
      const nn::Param& param = *piece.param;
      for (const nn::FlatRange& range :
           nn::ranges_in_shard(piece, nn::partial_ranges(param.spec(), param.where(), axis))) {
        parts_.push_back(shard.gradients.narrow(0, range.begin, range.size));
        total += range.size;
      }
    }
  }
  if (total == 0) return;
  group_ = groups.get(axis);
  if (group_.size() == 1) return;
  const nn::MemoryScope scope(nn::MemoryCategory::kWorkspace);
  joined_ = at::empty({total}, parts_.front().options());
}

void PartialSums::sum() const {
  if (!joined_.defined()) return;
  const auto for_each = [this](const auto& copy) {
    int64_t begin = 0;
    for (const at::Tensor& part : parts_) {
      copy(joined_.narrow(0, begin, part.numel()), part);
      begin += part.numel();
    }
  };
  for_each([](const at::Tensor& joined, const at::Tensor& part) { joined.copy_(part); });
  comm::all_reduce_(joined_, comm::ReduceOp::kSum, group_);
  for_each([](const at::Tensor& joined, const at::Tensor& part) { part.copy_(joined); });
}

} // namespace pentatron::parallel
