// Any bytes are a message of the control channel or a CommError; a message that was read is written
// and read again unchanged.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/comm/control/message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron::comm::control; // NOLINT: a fuzz target
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const Message message = decode(bytes);
    const std::string written = encode(message);
    if (encode(decode(written)) != written) __builtin_trap();
  } catch (const pentatron::CommError&) {
  }
  return 0;
}
