#include "pentatron/parallel/ddp/partial_sums.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/comm/collectives.h"
#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::parallel {

PartialSums::PartialSums(const std::vector<nn::Shard>& shards, const std::string& axis,
                         const comm::ParallelGroups& groups) {
  for (const nn::Shard& shard : shards) {
    if (!shard.trainable()) continue;
    for (const nn::Piece& piece : shard.pieces) {
      const nn::Param& param = *piece.param;
      for (const nn::FlatRange& range :
           nn::ranges_in_shard(piece, nn::partial_ranges(param.spec(), param.where(), axis)))
        parts_of(shard.gradients.scalar_type())
            .push_back(shard.gradients.narrow(0, range.begin, range.size));
    }
  }
  if (joined_.empty()) return;
  group_ = groups.get(axis);
  if (group_.size() == 1) {
    joined_.clear();
    return;
  }
  const nn::MemoryScope scope(nn::MemoryCategory::kWorkspace);
  for (Joined& joined : joined_) {
    int64_t total = 0;
    for (const at::Tensor& part : joined.parts) total += part.numel();
    joined.all = at::empty({total}, joined.parts.front().options());
  }
}

std::vector<at::Tensor>& PartialSums::parts_of(at::ScalarType type) {
  const auto fits = [&](const Joined& joined) {
    return joined.parts.front().scalar_type() == type;
  };
  const auto found = std::ranges::find_if(joined_, fits);
  return found != joined_.end() ? found->parts : joined_.emplace_back().parts;
}

void PartialSums::sum() const {
  for (const Joined& joined : joined_) {
    const auto for_each = [&](const auto& copy) {
      int64_t begin = 0;
      for (const at::Tensor& part : joined.parts) {
        copy(joined.all.narrow(0, begin, part.numel()), part);
        begin += part.numel();
      }
    };
    for_each([](const at::Tensor& all, const at::Tensor& part) { all.copy_(part); });
    comm::all_reduce_(joined.all, comm::ReduceOp::kSum, group_);
    for_each([](const at::Tensor& all, const at::Tensor& part) { part.copy_(all); });
  }
}

} // namespace pentatron::parallel
