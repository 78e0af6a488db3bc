// record_step [KEY=VALUE ...]: one step of a run with these settings as JSON: every launch on a
// GPU, equal ones counted. benchmarks/roofline/roofline.py makes a table of it.
#include <cstdio>
#include <exception>
#include <map>
#include <tuple>

#include <nlohmann/json.hpp>

#include "tests/roofline/step.h"

using pentatron::roofline::Launch;

namespace {

/// Launches that differ in their results alone are one row.
nlohmann::json rows(const std::vector<Launch>& launches) {
  std::map<std::tuple<std::string_view, std::string, std::string, double, double>,
           std::pair<Launch, int64_t>>
      equal;
  for (const Launch& one : launches) {
    auto& [launch, count] = equal[{kind_name(one.kind), one.op, one.shapes, one.read, one.written}];
    launch = one;
    ++count;
  }
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [key, row] : equal) {
    const auto& [launch, count] = row;
    list.push_back({{"kind", kind_name(launch.kind)},
                    {"op", launch.op},
                    {"shapes", launch.shapes},
                    {"count", count},
                    {"kernels", launch.kernels},
                    {"read", launch.read},
                    {"written", launch.written},
                    {"flops", launch.flops},
                    {"tensor_cores", launch.narrow},
                    {"waits", launch.waits}});
  }
  return list;
}

} // namespace

int main(int argc, char** argv) {
  try {
    const auto step = pentatron::roofline::record_step({argv + 1, argv + argc});
    const nlohmann::json json = {{"tokens", step.tokens},
                                 {"model_flops", step.model_flops},
                                 {"parameters", step.parameters},
                                 {"peak_bytes", step.peak_bytes},
                                 {"launches", rows(step.launches)}};
    std::printf("%s\n", json.dump(1).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
