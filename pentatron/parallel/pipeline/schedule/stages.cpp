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
  LayoutParser(std::string_view text, std::string letters, std::string remedy)
      : text_(text), letters_(std::move(letters)), remedy_(std::move(remedy)) {}

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
    if (c == 'm' && letters_.find(c) == std::string::npos)
      fail("contains multi-token prediction, which the model does not have,");
    if (letters_.find(c) == std::string::npos &&
        std::string_view("|, ").find(c) == std::string::npos)
      fail(fmt::format("contains '{}', which is not {} or |,", c, listed()));
    ++at_;
    return c == ',' || c == ' ' ? "" : std::string(1, c);
  }

  /// "E, t, L"
  std::string listed() const {
    std::string out;
    for (const char c : letters_) out += (out.empty() ? "" : ", ") + std::string(1, c);
    return out;
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
  std::string letters_; // of segments
  std::string remedy_;
  size_t at_ = 0;
};

int64_t num_layers(const StageOptions& o) {
  return std::ranges::count_if(o.segments, &StageSegment::is_layer);
}

/// The letters of the model's segments in their order.
std::string letters_of(const StageOptions& o) {
  std::string letters;
  for (const StageSegment& segment : o.segments) letters += segment.letter;
  return letters;
}

/// Ranges from the number of layers of each stage.
std::vector<SegmentRange> ranges_of(const StageOptions& o, const std::vector<int64_t>& counts) {
  std::vector<int64_t> layers; // their segments
  for (size_t i = 0; i < o.segments.size(); ++i)
    if (o.segments[i].is_layer) layers.push_back(static_cast<int64_t>(i));
  std::vector<SegmentRange> stages;
  int64_t begin = 0, dealt = 0;
  for (const int64_t count : counts) {
    dealt += count;
    const int64_t end = dealt == 0 ? layers.front() : layers[static_cast<size_t>(dealt - 1)] + 1;
    stages.push_back({begin, end});
    begin = end;
  }
  stages.back().end = static_cast<int64_t>(o.segments.size());
  return stages;
}

std::vector<int64_t> even_counts(int64_t layers, int64_t stages) {
  std::vector<int64_t> counts(static_cast<size_t>(stages), layers / stages);
  for (int64_t s = 0; s < layers % stages; ++s) ++counts[static_cast<size_t>(s)];
  return counts;
}

/// A layout that fits the model and the pipeline: layers dealt out evenly.
std::string working_layout(const StageOptions& o) {
  const size_t stages = o.rank_of_stage.size();
  if (o.segments.size() + stages > kLongestLayout / 2)
    return "parallel.pipeline_model_parallel_layout=\"\"";
  const std::string letters = letters_of(o);
  std::string text;
  for (const SegmentRange& stage :
       ranges_of(o, even_counts(num_layers(o), static_cast<int64_t>(stages)))) {
    text += text.empty() ? "" : "|";
    for (int64_t i = stage.begin; i < stage.end;) {
      const char letter = letters[static_cast<size_t>(i)];
      int64_t end = i;
      while (end < stage.end && letters[static_cast<size_t>(end)] == letter) ++end;
      text += end - i == 1 ? std::string(1, letter) : fmt::format("{}*{}", letter, end - i);
      i = end;
    }
  }
  return fmt::format("parallel.pipeline_model_parallel_layout=\"{}\"", text);
}

/// "2 layers t, 1 E and 1 L"
std::string counted_letters(const std::string& letters, const std::string& kinds) {
  std::string out = fmt::format("{} layers t", std::ranges::count(letters, 't'));
  for (const char c : kinds) {
    if (c == 't') continue;
    out += fmt::format("{}{} {}", c == kinds.back() ? " and " : ", ",
                       std::ranges::count(letters, c), c);
  }
  return out;
}

std::vector<SegmentRange> by_layout(const StageOptions& o) {
  const std::string wanted = letters_of(o);
  std::string kinds; // each letter once, in order
  for (const char c : wanted)
    if (kinds.find(c) == std::string::npos) kinds += c;
  const std::string letters = LayoutParser(o.layout, kinds, working_layout(o)).parse();
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
  if (order != wanted) {
    raise<ConfigError>("the pipeline layout \"{}\" has {}{}, but the model has {}\n  try: {}",
                       o.layout, counted_letters(order, kinds),
                       order.size() == wanted.size() ? " in another order" : "",
                       counted_letters(wanted, kinds), working_layout(o));
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
  const int64_t all = num_layers(o),
                rest = all - o.first_rank_layers.value_or(0) - o.last_rank_layers.value_or(0);
  const int others = ranks - given;
  if (rest < 0 || (others == 0 && rest != 0) || (others > 0 && rest % others != 0)) {
    raise<ConfigError>(
        "{} layers on the first and {} on the last of {} pipeline ranks leave {} layers, which "
        "cannot be divided evenly among the {} other ranks; the model has {} layers\n  try: {}",
        o.first_rank_layers.value_or(0), o.last_rank_layers.value_or(0), ranks, rest, others, all,
        kEvenly);
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

/// The layers, with `extras` other segments that count, are fewer than the stages.
[[noreturn]] void refuse_too_few(const StageOptions& o, int64_t extras, std::string_view counted) {
  const auto stages = static_cast<int64_t>(o.rank_of_stage.size());
  const int64_t ranks = *std::ranges::max_element(o.rank_of_stage) + 1,
                fit = (num_layers(o) + extras) / (stages / ranks);
  raise<ConfigError>("{} layers{} are too few for {} pipeline stages\n  try: model.num_layers={}{}",
                     num_layers(o), counted, stages, stages - extras,
                     fit < 1 ? ""
                             : fmt::format(" or parallel.pipeline_model_parallel_size={}", fit));
}

std::vector<int64_t> evenly(const StageOptions& o) {
  const auto stages = static_cast<int64_t>(o.rank_of_stage.size());
  const int64_t extras = o.count_embedding + o.count_loss, total = num_layers(o) + extras;
  if (total < stages) refuse_too_few(o, extras, "");
  std::vector<int64_t> layers = even_counts(total, stages);
  layers.front() -= o.count_embedding;
  layers.back() -= o.count_loss;
  return layers;
}

} // namespace

std::vector<SegmentRange> assign_stages(const StageOptions& o) {
  if (!o.layout.empty()) return by_layout(o);
  if (!o.costs.empty()) {
    if (o.costs.size() < o.rank_of_stage.size())
      refuse_too_few(o, std::ssize(o.segments) - num_layers(o), ", embedding and output layer");
    return by_cost(o.costs, o.rank_of_stage.size());
  }
  const bool ranked = o.first_rank_layers || o.last_rank_layers;
  return ranges_of(o, ranked ? by_ranks(o) : evenly(o));
}

std::string describe_stages(const std::vector<SegmentRange>& stages,
                            const std::vector<int>& rank_of_stage,
                            const std::vector<StageSegment>& segments) {
  std::string text;
  for (size_t s = 0; s < stages.size(); ++s) {
    std::string what;
    for (int64_t i = stages[s].begin; i < stages[s].end;) {
      const StageSegment& first = segments[static_cast<size_t>(i)];
      // "layer 3" to "layer 5" are "layers 3-5".
      const std::string stem = first.name.substr(0, first.name.find_last_of(' '));
      int64_t end = i + 1;
      while (first.is_layer && end < stages[s].end && segments[static_cast<size_t>(end)].is_layer &&
             segments[static_cast<size_t>(end)].name.starts_with(stem + " "))
        ++end;
      what += what.empty() ? "" : ", ";
      if (end - i == 1) {
        what += first.name;
      } else {
        const std::string& last = segments[static_cast<size_t>(end - 1)].name;
        what += fmt::format("{}s{}-{}", stem, first.name.substr(stem.size()),
                            last.substr(stem.size() + 1));
      }
      i = end;
    }
    text += fmt::format("{}stage {} on rank {}: {}", s == 0 ? "" : "\n", s, rank_of_stage[s],
                        what.empty() ? "nothing" : what);
  }
  return text;
}

} // namespace pentatron::pipeline
