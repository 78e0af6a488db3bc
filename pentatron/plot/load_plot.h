/// The load of experts as a picture: a row of cells for each layer, a cell for each expert.
#pragma once

#include <string>
#include <vector>

namespace pentatron::plot {

struct LoadPlot {
  std::string title;
  std::vector<std::string> layers;
  std::vector<std::vector<double>> loads; ///< by layer and expert, of the mean load
};

/// Blue cells have less than the mean load, orange ones more; an expert without a token is crossed
/// out. A cell shows its numbers when the mouse is over it.
std::string load_svg(const LoadPlot& plot);

} // namespace pentatron::plot
