#include "pentatron/checkpoint/sharded/expert_choices.h"

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::checkpoint {

namespace {

constexpr int64_t kMostTokens = int64_t{1} << 48; ///< of a step; sums of counts stay exact

int64_t count_of(const Json& value, const std::string& where) {
  if (!value.is_number_integer())
    raise<CheckpointError>("{} has {}, which is not an integer", where, excerpt(value.dump()));
  const auto count =
      value.is_number_unsigned()
          ? static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX))
          : value.get<int64_t>();
  if (count < 0 || count > kMostTokens)
    raise<CheckpointError>("{} has {}, which is not in 0 to {}", where, excerpt(value.dump()),
                           kMostTokens);
  return count;
}

} // namespace

ExpertChoices expert_choices(const Manifest& manifest, std::string_view origin) {
  const auto given = manifest.state.find("expert_choices");
  if (given == manifest.state.end()) return {};
  if (!given->is_object())
    raise<CheckpointError>("{}: state.expert_choices is not an object", origin);
  ExpertChoices choices;
  for (const auto& [layer, counts] : given->items()) {
    const std::string where = fmt::format("{}: state.expert_choices of {}", origin, excerpt(layer));
    const auto router = manifest.tensors.find(layer + ".router.weight");
    if (router == manifest.tensors.end() || router->second.shape.empty())
      raise<CheckpointError>("{} is of a layer without a router", where);
    if (!counts.is_array()) raise<CheckpointError>("{} is not a list", where);
    const int64_t experts = router->second.shape[0];
    if (std::ssize(counts) != experts)
      raise<CheckpointError>("{} has {} numbers, but the layer has {} experts", where,
                             counts.size(), experts);
    std::vector<int64_t>& list = choices[layer];
    for (const Json& count : counts) list.push_back(count_of(count, where));
  }
  return choices;
}

} // namespace pentatron::checkpoint
