#include "pentatron/generate/stop_strings.h"

#include <algorithm>
#include <utility>

namespace pentatron::generate {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string StopStrings::push(std::string_view piece) {
  if (found_) return {};
  held_ += piece;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    found_ = true;
    held_.resize(end);
    return std::exchange(held_, {});
  }
  // The longest end of the text that begins a stop string stays.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) {
        keep = n;
        break;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() {
  return std::exchange(held_, {});
}

} // namespace pentatron::generate
