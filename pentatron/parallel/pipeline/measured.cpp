#include "pentatron/parallel/pipeline/measured.h"

#include <fmt/format.h>

#include <iterator>
#include <sstream>

#include "pentatron/comm/gather_text.h"

namespace pentatron::pipeline {

namespace {

std::string to_text(const std::vector<Interval>& intervals) {
  std::string text;
  for (const auto& [a, start, end] : intervals) {
    fmt::format_to(std::back_inserter(text), "{} {} {} {} {} {} {} {} {}\n",
                   static_cast<int>(a.kind), a.stage, a.microbatch, a.second_stage,
                   a.second_microbatch, a.peer, static_cast<int>(a.payload), start, end);
  }
  return text;
}

std::vector<Interval> from_text(const std::string& text) {
  std::vector<Interval> intervals;
  std::istringstream in(text);
  int kind = 0, payload = 0;
  Interval i;
  Action& a = i.action;
  while (in >> kind >> a.stage >> a.microbatch >> a.second_stage >> a.second_microbatch >> a.peer >>
         payload >> i.start >> i.end) {
    a.kind = static_cast<ActionKind>(kind);
    a.payload = static_cast<Payload>(payload);
    intervals.push_back(i);
  }
  return intervals;
}

} // namespace

Timeline gather_timeline(const std::string& name, const std::vector<Interval>& intervals,
                         const comm::Group& pipeline) {
  Timeline timeline{.name = name, .rows = {}};
  for (const std::string& text : comm::gather_text(to_text(intervals), pipeline))
    timeline.rows.push_back(from_text(text));
  return timeline;
}

} // namespace pentatron::pipeline
