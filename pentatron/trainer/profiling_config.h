/// The section `profiling`: a trace of some iterations.
#pragma once

#include <cstdint>
#include <tuple>

#include "pentatron/config/field.h"

namespace pentatron::trainer {

struct ProfilingConfig {
  bool trace = false;
  int64_t trace_start = 3;
  int64_t trace_steps = 2;

  static constexpr auto fields() {
    using C = ProfilingConfig;
    using config::field;
    return std::tuple{field("trace", &C::trace,
                            "write a trace of computation and communication on every rank to "
                            "logger.dir/trace.json, for Perfetto or chrome://tracing; with "
                            "pipeline parallelism also pipeline.svg"),
                      field("trace_start", &C::trace_start,
                            "first iteration to trace, counted from the start of this run or "
                            "resume; 1: the first iteration")
                          .positive()
                          .unit("iterations"),
                      field("trace_steps", &C::trace_steps, "number of iterations to trace")
                          .positive()
                          .unit("iterations")};
  }
};

} // namespace pentatron::trainer
