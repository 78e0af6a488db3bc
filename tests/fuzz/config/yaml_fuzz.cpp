// Any bytes are a configuration or a list of violations, and a configuration that was read is
// written and read again unchanged.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "pentatron/config/config.h"
#include "tests/config/example.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  config_example::Config read;
  config::Violations violations;
  config::apply_yaml(read, text, "input", violations);
  config::validate(read, violations);
  if (!violations.empty()) return 0;
  config_example::Config again;
  config::apply_yaml(again, config::to_yaml(read), "output", violations);
  if (!violations.empty() || config::hash(read) != config::hash(again)) __builtin_trap();
  return 0;
}
