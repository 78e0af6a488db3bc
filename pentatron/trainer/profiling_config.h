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
    return std::tuple{
        field("trace", &C::trace,
              "write logger.dir/trace.json, for Perfetto or chrome://tracing: what every rank "
              "computed and communicated when; with pipeline ranks also pipeline.svg"),
        field("trace_start", &C::trace_start,
              "first iteration of the trace; 1: the first that this run makes, also when it was "
              "resumed")
            .positive()
            .unit("iterations"),
        field("trace_steps", &C::trace_steps, "iterations of the trace")
            .positive()
            .unit("iterations")};
  }
};

} // namespace pentatron::trainer
