// Any bytes are a GGUF model or a DataError, CheckpointError or ConfigError; every tensor of a
// model can be read and has the size that its shape says.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/gguf/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  // A file in memory: models are files.
  static const int file = memfd_create("model", 0);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    __builtin_trap();
  try {
    const checkpoint::GgufModel model(fmt::format("/proc/self/fd/{}", file));
    if (dump_json(model.config()).empty()) __builtin_trap();
    for (const auto& tensor : model.tensors()) {
      // The widest type has 8 floats of 4 bytes for 4.5.
      if (tensor.size_bytes() > 8 * size) __builtin_trap();
      std::vector<std::byte> bytes(tensor.size_bytes());
      model.read(tensor.name, bytes);
    }
  } catch (const DataError&) {
  } catch (const CheckpointError&) {
  } catch (const ConfigError&) { // an architecture that is not supported
  }
  return 0;
}
