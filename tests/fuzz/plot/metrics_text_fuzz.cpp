// Any bytes are points up to the first line that is none, and a picture of them has no NaN.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/plot/curves_plot.h"
#include "pentatron/plot/metrics_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron::plot;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const MetricsText read = parse_metrics(text);
  if (read.bad_line == 0 && !text.empty() && text.back() != '\n') __builtin_trap();
  if (read.points.size() > size) __builtin_trap();
  try {
    for (const XAxis x : {XAxis::kSteps, XAxis::kTokens, XAxis::kTime}) {
      CurvesPlot plot = make_curves({{"run", read.points}}, x, YAxis::kLoss);
      plot.log_y = plot.log_x = size % 2 == 1;
      curves_svg(plot);
    }
  } catch (const pentatron::DataError&) {
  }
  return 0;
}
