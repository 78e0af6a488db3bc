// Any bytes are the adapter_config.json of an adapter that can be, or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/adapters/peft_settings.h"

namespace {

/// In memory, for as long as the process.
const std::filesystem::path& folder() {
  static const std::filesystem::path path = [] {
    char name[] = "/dev/shm/peft_settings_fuzz.XXXXXX";
    if (mkdtemp(name) == nullptr) std::abort();
    static const std::string made = name;
    std::atexit([] { std::filesystem::remove_all(made); });
    return std::filesystem::path(made);
  }();
  return path;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  using namespace pentatron::checkpoint;
  log::set_level(log::Level::kError);
  std::ofstream(folder() / kPeftConfig, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    read_peft_settings(folder());
    ties_adapters(folder());
    check_peft_tying(folder(), "lm_head");
  } catch (const Error&) {
  }
  return 0;
}
