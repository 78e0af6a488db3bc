#include "pentatron/comm/gather_text.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

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

std::vector<std::string> gather_text_to(const std::vector<int>& to, const std::string& text,
                                        const Group& group) {
  const auto own = static_cast<int64_t>(text.size());
  const at::Tensor sizes = all_gather(at::full({1}, own, at::kLong), 0, group);
  const std::span<const int64_t> lengths(sizes.const_data_ptr<int64_t>(),
                                         static_cast<size_t>(group.size()));
  const bool here = std::ranges::find(to, group.rank()) != to.end();
  std::vector<int64_t> sent(lengths.size(), 0), received(lengths.size(), 0);
  for (const int rank : to) sent[static_cast<size_t>(rank)] = own;
  if (here) received.assign(lengths.begin(), lengths.end());
  const auto copies = static_cast<int64_t>(to.size());
  const at::Tensor bytes = at::empty({copies * own}, at::kByte);
  for (int64_t i = 0; i < copies && own > 0; ++i)
    std::memcpy(bytes.mutable_data_ptr<uint8_t>() + i * own, text.data(), text.size());
  const at::Tensor all = all_to_all_rows(bytes, sent, received, group);
  std::vector<std::string> texts;
  const auto* next = static_cast<const char*>(all.const_data_ptr());
  for (const int64_t length : received) {
    if (here) texts.emplace_back(next, next + length);
    next += length;
  }
  return texts;
}

std::string first_error(const Group& group, bool here, const std::function<void()>& work) {
  std::string problem;
  try {
    if (here) work();
  } catch (const Error& error) {
    problem = error.what();
  }
  for (std::string& text : gather_text(problem, group))
    if (!text.empty()) return std::move(text);
  return "";
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
