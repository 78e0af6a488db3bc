// Any bytes are JSON or a DataError, and JSON that was read is written and read again unchanged.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const pentatron::Json json = pentatron::parse_json(text, "input");
    if (pentatron::parse_json(pentatron::dump_json(json), "output") != json) __builtin_trap();
  } catch (const pentatron::DataError&) {
  }
  return 0;
}
