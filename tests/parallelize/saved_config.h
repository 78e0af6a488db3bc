/// The configuration that a checkpoint of a model needs to be opened.
#pragma once

#include <string>
#include <tuple>

#include "pentatron/config/config.h"
#include "pentatron/models/model_config.h"

namespace pentatron::test {

inline std::string yaml_of(const models::ModelConfig& model) {
  struct Saved {
    models::ModelConfig model;
    static constexpr auto fields() {
      return std::tuple{config::field("model", &Saved::model, "the model")};
    }
  };
  return config::to_yaml(Saved{model});
}

} // namespace pentatron::test
