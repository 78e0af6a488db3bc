/// A timeline as a picture.
#pragma once

#include <string>

#include "pentatron/parallel/pipeline/schedule/simulate.h"

namespace pentatron::pipeline {

struct DrawOptions {
  std::string title; ///< above the picture; empty: the timeline's name
  std::string unit;  ///< of time, at the axis; may be empty
  int width = 1200;  ///< in pixels, of the whole picture
};

/// A self-contained SVG: a row for each rank, a box for each interval with its microbatch in it,
/// colours by kind, a darker shade for each further stage of the rank, the two halves of an
/// overlapped pair one above the other, an axis of time from the first start on, a legend, and
/// each rank's idle share at the right. Intervals of sends, receives and the like are thin lines.
/// Throws ConfigError if the width is below 300 or a time is not finite.
std::string draw_svg(const Timeline& timeline, const DrawOptions& options = {});

} // namespace pentatron::pipeline
