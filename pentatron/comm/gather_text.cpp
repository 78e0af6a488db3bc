#include "pentatron/comm/gather_text.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "pentatron/comm/collectives.h"

namespace pentatron::comm {

std::vector<std::string> gather_text(const std::string& text, const Group& group) {
  const auto own = static_cast<int64_t>(text.size());
  const at::Tensor sizes = all_gather(at::full({1}, own, at::kLong), 0, group);
  const int64_t longest = std::max<int64_t>(1, sizes.max().item<int64_t>());
  const at::Tensor padded = at::zeros({1, longest}, at::kByte);
  std::memcpy(padded.data_ptr(), text.data(), text.size());
  const at::Tensor all = all_gather(padded, 0, group);
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto* begin = static_cast<const char*>(all[rank].data_ptr());
    texts.emplace_back(begin, begin + sizes[rank].item<int64_t>());
  }
  return texts;
}

std::string broadcast_text(const std::string& text, int root, const Group& group) {
  const at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  broadcast_(size, root, group);
  const at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  if (group.rank() == root && !text.empty())
    std::memcpy(bytes.data_ptr(), text.data(), text.size());
  broadcast_(bytes, root, group);
  const auto* begin = static_cast<const char*>(bytes.data_ptr());
  return {begin, begin + bytes.numel()};
}

} // namespace pentatron::comm
