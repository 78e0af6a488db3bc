// Any bytes are a manifest (or a rank's description) or a CheckpointError, and a manifest that was
// read is written and read again unchanged. The checksum is made good first, or nothing but it
// would be tested.
#include <cstddef>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  using namespace pentatron::checkpoint;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    Manifest manifest;
    add_file(manifest, parse_file_description(text, "input"));
    check_manifest(manifest, "input");
    if (to_text(parse_manifest(to_text(manifest), "output")) != to_text(manifest)) __builtin_trap();
  } catch (const CheckpointError&) {
  }
  try {
    parse_manifest(text, "input");
  } catch (const CheckpointError&) {
  }
  const std::string body = text.substr(0, text.rfind(",\n\"crc32c\""));
  const std::string sealed =
      body + fmt::format(",\n\"crc32c\":\"{:08x}\"}}\n", crc32c(std::as_bytes(std::span(body))));
  try {
    const Manifest manifest = parse_manifest(sealed, "input");
    const std::string written = to_text(manifest);
    if (to_text(parse_manifest(written, "output")) != written) __builtin_trap();
  } catch (const CheckpointError&) {
  }
  return 0;
}
