// Any bytes are points and damaged lines, and a picture of them has no NaN.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/plot/curves_plot.h"
#include "pentatron/plot/metrics_text.h"

namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Whether `word` stands in `svg` other than within a longer word.
bool has_word(std::string_view svg, std::string_view word) {
  for (size_t at = svg.find(word); at != std::string_view::npos; at = svg.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !is_letter(svg[at - 1]);
    if (begins && (end == svg.size() || !is_letter(svg[end]))) return true;
  }
  return false;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron::plot;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const MetricsText read = parse_metrics(text);
  if (read.bytes > size || (read.bytes > 0 && text[read.bytes - 1] != '\n')) __builtin_trap();
  const auto lines = std::count(text.begin(), text.end(), '\n');
  if (std::ssize(read.points) + read.damaged != lines) __builtin_trap();
  try {
    for (const XAxis x : {XAxis::kSteps, XAxis::kTokens, XAxis::kTime}) {
      CurvesPlot plot = make_curves({{"run", read.points}}, x, YAxis::kLoss);
      plot.log_y = plot.log_x = size % 2 == 1;
      const std::string svg = curves_svg(plot);
      if (has_word(svg, "nan") || has_word(svg, "inf")) __builtin_trap();
    }
  } catch (const pentatron::DataError&) {
  }
  return 0;
}
