/// Transports over sockets whose ranks live in this process.
#pragma once

#include "pentatron/comm/backend/sockets/socket_transport.h"

#include <cstdlib>
#include <memory>
#include <sys/socket.h>
#include <tuple>
#include <utility>
#include <vector>

namespace pentatron::test {

inline std::pair<comm::control::Descriptor, comm::control::Descriptor> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  return {comm::control::Descriptor(ends[0]), comm::control::Descriptor(ends[1])};
}

/// Transports of `size` ranks that are connected.
inline std::vector<std::unique_ptr<comm::messages::Transport>> transports(int size) {
  std::vector<std::vector<comm::control::Descriptor>> sockets(static_cast<size_t>(size));
  for (auto& row : sockets) row.resize(static_cast<size_t>(size));
  for (size_t a = 0; a < sockets.size(); ++a)
    for (size_t b = 0; b < a; ++b) std::tie(sockets[a][b], sockets[b][a]) = socket_pair();
  std::vector<std::unique_ptr<comm::messages::Transport>> result;
  for (int rank = 0; rank < size; ++rank)
    result.push_back(
        comm::sockets::make_transport(rank, std::move(sockets[static_cast<size_t>(rank)])));
  return result;
}

} // namespace pentatron::test
