/// The key-value store that a torchrun serves to its ranks.
#pragma once

#include "pentatron/comm/launch.h"

#include <string>

namespace pentatron::comm::sockets {

/// Whether a torchrun has started this process and serves its store.
bool serves_store(const Environment& environment);

/// Returns rank 0's `text` on every rank. Waits at most `timeout_s`. Throws CommError if the store
/// does not answer.
std::string exchange_by_store(const Launch& launch, const Environment& environment,
                              double timeout_s, const std::string& text);

} // namespace pentatron::comm::sockets
