#include "pentatron/parallel/pipeline/schedule/stages.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "pentatron/base/error.h"

namespace pentatron::pipeline {

namespace {

/// A layout that repeats its way to more letters than this is a mistake.
constexpr size_t kLongestLayout = 1 << 20;

/// Writes repetitions out: "(t|)*2L" -> "t|t|L".
class LayoutParser {
 public:
  LayoutParser(std::string_view text, std::string remedy)
      : text_(text), remedy_(std::move(remedy)) {}

  std::string parse() {
    std::string all = items(0);
    if (at_ != text_.size()) fail("has a ')' without a '('");
    return all;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    raise<ConfigError>("the pipeline layout \"{}\" {} at character {}\n  try: {}", text_, what,
                       at_ + 1, remedy_);
  }

  std::string items(int depth) {
    if (depth > 8) fail("is nested too deep");
    std::string out;
    while (at_ < text_.size() && text_[at_] != ')') {
      std::string item;
      if (text_[at_] == '(') {
        ++at_;
        item = items(depth + 1);
        if (at_ == text_.size()) fail("has a '(' without a ')'");
        ++at_;
      } else {
        item = letter();
      }
      append(out, item, repetitions());
    }
    return out;
  }

  std::string letter() {
    const char c = text_[at_];
    if (c == 'm') fail("contains multi-token prediction, which is not supported,");
    if (std::string_view("EtL|, ").find(c) == std::string_view::npos)
      fail(fmt::format("contains '{}', which is not E, t, L or |,", c));
    ++at_;
    return c == ',' || c == ' ' ? "" : std::string(1, c);
  }

  int64_t repetitions() {
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    ++at_;
    int64_t n = 0;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      n = std::min<int64_t>(10 * n + (text_[at_] - '0'), kLongestLayout + 1);
    if (at_ == begin) fail("has a '*' without a number");
    return n;
  }

  void append(std::string& out, const std::string& item, int64_t n) const {
    if (out.size() + item.size() * static_cast<size_t>(n) > kLongestLayout)
      fail(fmt::format("expands to more than {} letters", kLongestLayout));
    for (int64_t i = 0; i < n; ++i) out += item;
  }

  std::string_view text_;
  std::string remedy_;
  size_t at_ = 0;
};

/// A layout that fits the model and the pipeline: layers dealt out evenly.
std::string working_layout(const StageOptions& o) {
  const auto stages = static_cast<int64_t>(o.rank_of_stage.size());
  if (o.num_layers + stages > int64_t{kLongestLayout} / 2)
    return "parallel.pipeline_model_parallel_layout=\"\"";
  std::string text = "E";
  for (int64_t s = 0; s < stages; ++s) {
    if (s > 0) text += '|';
    const int64_t layers = o.num_layers * (s + 1) / stages - o.num_layers * s / stages;
    if (layers > 0) text += layers == 1 ? "t" : fmt::format("t*{}", layers);
  }
  return fmt::format("parallel.pipeline_model_parallel_layout=\"{}L\"", text);
}

std::vector<SegmentRange> by_layout(const StageOptions& o) {
  const std::string letters = LayoutParser(o.layout, working_layout(o)).parse();
  std::vector<SegmentRange> stages = {{}};
  std::string order;
  int64_t segment = 0;
  for (const char c : letters) {
    if (c == '|') {
      stages.push_back({segment, segment});
    } else {
      order += c;
      stages.back().end = ++segment;
    }
  }
  std::string wanted(static_cast<size_t>(o.num_layers) + 2, 't');
  wanted.front() = 'E';
  wanted.back() = 'L';
  if (order != wanted) {
    raise<ConfigError>("the pipeline layout \"{}\" has {} layers t, {} E and {} L{}, but the model "
                       "has {} layers\n  try: {}",
                       o.layout, std::ranges::count(order, 't'), std::ranges::count(order, 'E'),
                       std::ranges::count(order, 'L'),
                       order.size() == wanted.size() ? " in another order" : "", o.num_layers,
                       working_layout(o));
  }
  if (stages.size() != o.rank_of_stage.size()) {
    raise<ConfigError>(
        "the pipeline layout \"{}\" has {} stages, but the pipeline has {}\n  try: {}", o.layout,
        stages.size(), o.rank_of_stage.size(), working_layout(o));
  }
  return stages;
}

/// The cheapest bound under which the segments fit into `count` stages, by bisection over what the
/// stages can cost. A stage always has at least one segment while they last.
std::vector<SegmentRange> by_cost(const std::vector<double>& costs, size_t count) {
  const auto fill = [&](double bound) {
    std::vector<SegmentRange> stages;
    int64_t begin = 0;
    const auto n = static_cast<int64_t>(costs.size());
    for (size_t s = 0; s < count; ++s) {
      // Every later stage needs a segment of its own.
      const int64_t most = n - static_cast<int64_t>(count - s - 1);
      int64_t end = begin;
      double sum = 0;
      while (end < most && (end == begin || sum + costs[static_cast<size_t>(end)] <= bound))
        sum += costs[static_cast<size_t>(end++)];
      stages.push_back({begin, end});
      begin = end;
    }
    return stages;
  };
  const auto dearest = [&](const std::vector<SegmentRange>& stages) {
    double worst = 0;
    for (const SegmentRange& s : stages)
      worst = std::max(worst, std::accumulate(costs.begin() + s.begin, costs.begin() + s.end, 0.0));
    return worst;
  };
  double low = 0, high = std::accumulate(costs.begin(), costs.end(), 0.0);
  std::vector<SegmentRange> best = fill(high);
  for (int i = 0; i < 100 && high - low > 1e-9 * high; ++i) {
    const double bound = (low + high) / 2;
    const std::vector<SegmentRange> stages = fill(bound);
    const bool fits =
        stages.back().end == static_cast<int64_t>(costs.size()) && dearest(stages) <= bound;
    if (fits) best = stages;
    (fits ? high : low) = bound;
  }
  return best;
}

constexpr std::string_view kEvenly = "parallel.num_layers_in_first_pipeline_stage=null and "
                                     "parallel.num_layers_in_last_pipeline_stage=null";

/// Layers of each stage where ranks have a say.
std::vector<int64_t> by_ranks(const StageOptions& o) {
  const size_t stages = o.rank_of_stage.size();
  const int ranks = *std::ranges::max_element(o.rank_of_stage) + 1;
  const int64_t per_rank = static_cast<int64_t>(stages) / ranks;
  const int given = o.first_rank_layers.has_value() + o.last_rank_layers.has_value();
  const int64_t rest =
      o.num_layers - o.first_rank_layers.value_or(0) - o.last_rank_layers.value_or(0);
  const int others = ranks - given;
  if (rest < 0 || (others == 0 && rest != 0) || (others > 0 && rest % others != 0)) {
    raise<ConfigError>("{} layers on the first and {} on the last of {} pipeline ranks leave {} "
                       "for {} others, of {}\n  try: {}",
                       o.first_rank_layers.value_or(0), o.last_rank_layers.value_or(0), ranks, rest,
                       others, o.num_layers, kEvenly);
  }
  std::vector<int64_t> of_rank(static_cast<size_t>(ranks), others > 0 ? rest / others : 0);
  if (o.first_rank_layers) of_rank.front() = *o.first_rank_layers;
  if (o.last_rank_layers) of_rank.back() = *o.last_rank_layers;
  std::vector<int64_t> layers;
  for (const int rank : o.rank_of_stage) {
    const int64_t n = of_rank[static_cast<size_t>(rank)];
    if (n % per_rank != 0) {
      raise<ConfigError>("{} layers of pipeline rank {} cannot be divided evenly among its {} "
                         "stages\n  try: {}",
                         n, rank, per_rank, kEvenly);
    }
    layers.push_back(n / per_rank);
  }
  return layers;
}

std::vector<int64_t> evenly(const StageOptions& o) {
  const auto stages = static_cast<int64_t>(o.rank_of_stage.size());
  const int64_t total = o.num_layers + o.count_embedding + o.count_loss;
  if (total < stages) {
    const int64_t ranks = *std::ranges::max_element(o.rank_of_stage) + 1;
    const int64_t fit = total / (stages / ranks);
    raise<ConfigError>("{} layers are too few for {} pipeline stages\n  try: model.num_layers={}{}",
                       o.num_layers, stages, stages - o.count_embedding - o.count_loss,
                       fit < 1 ? ""
                               : fmt::format(" or parallel.pipeline_model_parallel_size={}", fit));
  }
  std::vector<int64_t> layers(static_cast<size_t>(stages), total / stages);
  for (int64_t s = 0; s < total % stages; ++s) ++layers[static_cast<size_t>(s)];
  layers.front() -= o.count_embedding;
  layers.back() -= o.count_loss;
  return layers;
}

} // namespace

std::vector<SegmentRange> assign_stages(const StageOptions& o) {
  if (!o.layout.empty()) return by_layout(o);
  if (!o.segment_costs.empty()) {
    if (o.segment_costs.size() < o.rank_of_stage.size())
      raise<ConfigError>(
          "a model of {} layers, embedding and head is too small for {} pipeline stages",
          o.num_layers, o.rank_of_stage.size());
    return by_cost(o.segment_costs, o.rank_of_stage.size());
  }
  const bool ranked = o.first_rank_layers || o.last_rank_layers;
  std::vector<SegmentRange> stages;
  int64_t begin = 1;
  for (const int64_t layers : ranked ? by_ranks(o) : evenly(o)) {
    stages.push_back({begin, begin + layers});
    begin += layers;
  }
  stages.front().begin = 0;
  stages.back().end = o.num_layers + 2;
  return stages;
}

std::string describe_stages(const std::vector<SegmentRange>& stages,
                            const std::vector<int>& rank_of_stage, int64_t num_layers) {
  std::string text;
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto [begin, end] = stages[s];
    std::string what;
    const auto add = [&](const std::string& part) { what += (what.empty() ? "" : ", ") + part; };
    if (begin == 0 && end > 0) add("embedding");
    const int64_t first = std::max<int64_t>(begin, 1) - 1, last = std::min(end, num_layers + 1) - 2;
    if (first == last) add(fmt::format("layer {}", first));
    if (first < last) add(fmt::format("layers {}-{}", first, last));
    if (end == num_layers + 2 && begin < end) add("head");
    text += fmt::format("{}stage {} on rank {}: {}", s == 0 ? "" : "\n", s, rank_of_stage[s],
                        what.empty() ? "nothing" : what);
  }
  return text;
}

} // namespace pentatron::pipeline
