#include "pentatron/models/model_spec.h"

#include <algorithm>
#include <cmath>

#include "pentatron/parallel/tensor/head_rows.h"

namespace pentatron::models {

std::vector<int> ModelSpec::alive_before(int64_t index) const {
  std::vector<int> alive;
  for (int flow = 0; flow < static_cast<int>(flows.size()); ++flow) {
    const auto has = [&](const std::vector<int>& list) {
      return std::ranges::find(list, flow) != list.end();
    };
    const auto begin = segments.begin(), cut = begin + index;
    const bool given = std::any_of(begin, cut, [&](const SegmentSpec& s) { return has(s.gives); });
    const auto next = std::find_if(
        cut, segments.end(), [&](const SegmentSpec& s) { return has(s.takes) || has(s.gives); });
    if (given && next != segments.end() && has(next->takes)) alive.push_back(flow);
  }
  return alive;
}

nn::Ports ModelSpec::ports(int64_t index) const {
  const SegmentSpec& segment = segments[static_cast<size_t>(index)];
  nn::Ports ports{
      .takes = segment.takes, .gives = segment.gives, .ends = {}, .stream = segment.stream};
  const std::vector<int> after = alive_before(index + 1);
  for (const int flow : segment.takes)
    if (std::ranges::find(after, flow) == after.end()) ports.ends.push_back(flow);
  return ports;
}

std::vector<std::vector<bool>> ModelSpec::trained_flows(const std::vector<bool>& trains) const {
  std::vector<std::vector<bool>> trained = {std::vector<bool>(flows.size(), false)};
  for (size_t i = 0; i < segments.size(); ++i) {
    std::vector<bool> behind = trained.back();
    const bool reached = trains[i] || std::ranges::any_of(segments[i].takes, [&](int flow) {
                           return trained.back()[static_cast<size_t>(flow)];
                         });
    for (const int flow : segments[i].gives)
      behind[static_cast<size_t>(flow)] =
          reached && flows[static_cast<size_t>(flow)].differentiable;
    trained.push_back(std::move(behind));
  }
  return trained;
}

std::vector<nn::LayerShape> stream_shapes(const ModelSpec& spec, int64_t samples,
                                          const std::vector<int64_t>& lengths, double targets) {
  std::vector<nn::LayerShape> shapes(spec.streams.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    nn::LayerShape& shape = shapes[i];
    shape.tokens = samples * lengths[i];
    shape.squared_lengths = shape.tokens * lengths[i];
    if (i == 0) continue;
    shape.memory_tokens = shapes[0].tokens;
    shape.crossed_lengths = shape.tokens * lengths[0];
  }
  if (targets < 1) {
    nn::LayerShape& last = shapes.back();
    last.head_rows =
        parallel::head_rows(std::llround(targets * static_cast<double>(last.tokens)), last.tokens);
  }
  return shapes;
}

} // namespace pentatron::models
