#include "pentatron/trainer/metrics/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pentatron::trainer {

namespace {

constexpr double kMicroseconds = 1e6;

Json metadata(const char* what, int rank, int lane, const char* key, const Json& value) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{key, value}}}};
}

} // namespace

std::vector<TraceLane> without_overlap(const std::string& name, std::vector<TraceSlice> slices) {
  std::ranges::stable_sort(slices, {}, &TraceSlice::start_s);
  std::vector<TraceLane> lanes;
  for (TraceSlice& slice : slices) {
    auto free = std::ranges::find_if(
        lanes, [&](const TraceLane& lane) { return lane.slices.back().end_s <= slice.start_s; });
    if (free == lanes.end()) {
      lanes.push_back({lanes.empty() ? name : fmt::format("{} {}", name, lanes.size() + 1), {}});
      free = std::prev(lanes.end());
    }
    free->slices.push_back(std::move(slice));
  }
  return lanes;
}

Json trace_events(int rank, const std::string& process, const std::vector<TraceLane>& lanes) {
  Json events = Json::array();
  events.push_back(metadata("process_name", rank, 0, "name", process));
  events.push_back(metadata("process_sort_index", rank, 0, "sort_index", rank));
  for (int tid = 0; const TraceLane& lane : lanes) {
    events.push_back(metadata("thread_name", rank, tid, "name", lane.name));
    events.push_back(metadata("thread_sort_index", rank, tid, "sort_index", tid));
    for (const TraceSlice& slice : lane.slices) {
      events.push_back({{"ph", "X"},
                        {"name", slice.name},
                        {"cat", slice.category},
                        {"pid", rank},
                        {"tid", tid},
                        {"ts", slice.start_s * kMicroseconds},
                        {"dur", (slice.end_s - slice.start_s) * kMicroseconds},
                        {"args", slice.notes}});
    }
    ++tid;
  }
  return events;
}

std::string chrome_trace(const std::vector<Json>& processes) {
  double first = std::numeric_limits<double>::infinity();
  for (const Json& events : processes)
    for (const Json& event : events)
      if (event.contains("ts")) first = std::min(first, event["ts"].get<double>());
  Json all = Json::array();
  for (const Json& events : processes) {
    for (Json event : events) {
      if (event.contains("ts")) {
        const auto ns = [](double us) { return std::round(us * 1e3) / 1e3; };
        const double start = ns(event["ts"].get<double>() - first);
        // Both ends are rounded, so that neighbours stay neighbours.
        const double end = ns(event["ts"].get<double>() + event["dur"].get<double>() - first);
        event["ts"] = start;
        event["dur"] = ns(end - start);
      }
      all.push_back(std::move(event));
    }
  }
  return dump_json({{"displayTimeUnit", "ms"}, {"traceEvents", std::move(all)}}) + "\n";
}

} // namespace pentatron::trainer
