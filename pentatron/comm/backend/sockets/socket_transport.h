/// Messages over stream sockets, one between each two ranks.
#pragma once

#include "pentatron/comm/backend/messages/transport.h"
#include "pentatron/comm/control/connection.h"

#include <memory>
#include <vector>

namespace pentatron::comm::sockets {

/// `peers` are connected, by rank; that of this rank is invalid.
std::unique_ptr<messages::Transport> make_transport(int rank,
                                                    std::vector<control::Descriptor> peers);

} // namespace pentatron::comm::sockets
