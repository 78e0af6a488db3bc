// Any text as model.moe_layer_freq: a pattern of as many layers as asked for, or a ConfigError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/models/layer_pattern.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const int64_t layers : {1, 7, 61}) {
    try {
      const auto pattern = pentatron::models::parse_layer_pattern(text, layers);
      if (static_cast<int64_t>(pattern.size()) != layers) std::abort();
    } catch (const pentatron::ConfigError&) { // a wrong pattern
    }
  }
  return 0;
}
