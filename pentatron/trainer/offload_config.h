/// The section `offload`: what leaves the memory of a rank until it is needed.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "pentatron/config/field.h"

namespace pentatron::trainer {

struct OffloadConfig {
  bool activations = false;
  int64_t num_layers = 0;
  bool optimizer = false;
  double optimizer_fraction = 1;
  std::string dir;

  static constexpr auto fields() {
    using C = OffloadConfig;
    using config::field;
    return std::tuple{
        field("activations", &C::activations,
              "move what layers keep for the backward pass out of memory until it is needed: of a "
              "rank on a CPU into a file in dir, of one on a GPU into host memory"),
        field(
            "num_layers", &C::num_layers,
            "number of layers in each pipeline stage whose activations are moved, from the first; "
            "0: all but the last, which the backward pass needs at once")
            .min(0)
            .unit("layers"),
        field("optimizer", &C::optimizer,
              "keep the optimizer's running means and master weights out of memory between the "
              "steps: of a rank on a CPU in a file in dir, of one on a GPU in host memory"),
        field("optimizer_fraction", &C::optimizer_fraction,
              "fraction of the elements whose running means and master weights are kept out of "
              "memory with optimizer=true")
            .positive()
            .max(1),
        field("dir", &C::dir,
              "folder for the files of ranks on CPUs, on a fast disk; the files have no name and "
              "are gone when the run ends")};
  }
};

} // namespace pentatron::trainer
