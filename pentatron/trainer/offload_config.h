/// The section `offload`: data that is moved out of memory until it is needed.
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
        field(
            "activations", &C::activations,
            "move the activations that layers store for the backward pass out of memory until they "
            "are needed: CPU ranks move them to a file in offload.dir, GPU ranks to host memory"),
        field("num_layers", &C::num_layers,
              "number of layers in each pipeline stage, from the first, whose activations are "
              "moved; 0: all but the last layer, whose activations the backward pass needs first")
            .min(0)
            .unit("layers"),
        field("optimizer", &C::optimizer,
              "store the optimizer's running means and master weights outside of memory between "
              "steps: CPU ranks store them in a file in offload.dir, GPU ranks in host memory"),
        field("optimizer_fraction", &C::optimizer_fraction,
              "offload.optimizer=true: fraction of the elements whose running means and master "
              "weights are stored outside of memory")
            .positive()
            .max(1),
        field("dir", &C::dir,
              "folder on a fast disk for the files of CPU ranks; the files are not visible in the "
              "folder and are deleted when the run ends")};
  }
};

} // namespace pentatron::trainer
