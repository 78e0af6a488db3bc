/// Selections and measurements as text for people.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "pentatron/kernels/selection/measure.h"

namespace pentatron::kernels {

/// A table with one line for each operator, element type and kind of product: the entry that runs
/// with `selection`, its rate (a range where the line stands for several sizes), and the speed of
/// the other entries relative to it. A line splits where sizes have different entries.
std::string selection_table(const Selection& selection, std::span<const Measurement> measured);

/// One sentence for the log: which of the classes that matter by `options` do not run the first
/// entry of their list; empty if all do.
std::string describe_departures(const Selection& selection, const MeasureOptions& options = {});

/// One sentence for each measured class whose chosen entry is now far slower than another.
std::vector<std::string> slow_choices(const Selection& selection,
                                      std::span<const Measurement> measured);

} // namespace pentatron::kernels
