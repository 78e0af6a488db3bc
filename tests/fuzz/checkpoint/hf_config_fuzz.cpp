// Any bytes are a config.json of a model that can be, or a DataError or ConfigError; what was read
// is written as some family's config.json, unless no family has it, and read again unchanged.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/hf/weight_map.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  using namespace pentatron::checkpoint;
  log::set_level(log::Level::kError);
  HfModel model;
  try {
    model = parse_hf_config(
        parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "input"), "input");
    if (model.config.num_layers < 1) __builtin_trap();
  } catch (const DataError&) {
    return 0;
  } catch (const ConfigError&) {
    return 0;
  }
  const bool small = model.config.num_layers < 8 && model.config.num_moe_experts.value_or(1) < 64;
  if (small && weight_map(model).empty()) __builtin_trap();
  try {
    const HfExport made = make_hf_config(model.config, model.family);
    if (made.family == model.family &&
        !same_model(parse_hf_config(made.config, "output").config, model.config))
      __builtin_trap();
  } catch (const ConfigError&) {
  }
  return 0;
}
