/// The JSON of Chrome's and Perfetto's trace viewers: one process for each rank, lanes of slices
/// that do not overlap.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pentatron/base/json.h"

namespace pentatron::trainer {

/// Units: seconds of any clock.
struct TraceSlice {
  std::string name;
  std::string category;
  double start_s = 0;
  double end_s = 0;
  Json notes = Json::object(); ///< shown when the slice is selected
};

struct TraceLane {
  std::string name;
  std::vector<TraceSlice> slices; ///< in order, one after the other
};

/// Deals slices that may overlap out to as few lanes as possible, "name", "name 2", ...
std::vector<TraceLane> without_overlap(const std::string& name, std::vector<TraceSlice> slices);

/// The events of one process, times as given.
Json trace_events(int rank, const std::string& process, const std::vector<TraceLane>& lanes);

/// The file: the events of all processes, moved so that the first begins at 0.
std::string chrome_trace(const std::vector<Json>& processes);

} // namespace pentatron::trainer
