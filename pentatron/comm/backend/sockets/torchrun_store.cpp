#include "pentatron/comm/backend/sockets/torchrun_store.h"

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>

namespace pentatron::comm::sockets {

bool serves_store(const Environment& environment) {
  const auto found = environment.find("TORCHELASTIC_USE_AGENT_STORE");
  return found != environment.end() && found->second == "True";
}

std::string exchange_by_store(const Launch& launch, const Environment& environment,
                              double timeout_s, const std::string& text) {
  const auto restart = environment.find("TORCHELASTIC_RESTART_COUNT");
  const std::string key = fmt::format("pentatron/{}/{}", launch.job,
                                      restart == environment.end() ? "0" : restart->second);
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(launch.master_port);
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
    const auto store = c10::make_intrusive<c10d::TCPStore>(launch.master_addr, options);
    if (launch.rank == 0) {
      store->set(key, std::vector<uint8_t>(text.begin(), text.end()));
      return text;
    }
    const std::vector<uint8_t> value = store->get(key); // waits for it
    return std::string(value.begin(), value.end());
  } catch (const std::exception& error) {
    raise<CommError>("torchrun's store at {}:{} does not answer ({})", launch.master_addr,
                     launch.master_port, excerpt(error.what(), 200));
  }
}

} // namespace pentatron::comm::sockets
