/// The messages of the control channel as bytes. Every count and length is checked against limits
/// and against the bytes that are there; whatever is wrong is a CommError, and the connection is
/// dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "pentatron/comm/control/siphash.h"
#include "pentatron/comm/control/status.h"

namespace pentatron::comm::control {

inline constexpr size_t kMaxHandshakeBytes = 1024;
inline constexpr size_t kMaxMessageBytes = size_t{4} << 20;

/// Server to a client that has connected.
struct Hello {
  Key nonce{};
};
/// Its answer. `proof` is the hash of the rest and both nonces under the job secret.
struct Join {
  int rank = 0;
  int world_size = 0;
  int64_t pid = 0;
  std::string machine; ///< equal where process ids mean the same processes
  Key nonce{};
  Key proof{};
};
/// The server's proof that it knows the secret too.
struct Welcome {
  Key proof{};
  int64_t pid = 0;
  std::string machine;
  int host_rank = -1; ///< the rank in whose process the server runs
};
/// A client's heartbeat.
struct Heartbeat {
  RankStatus status;
};
/// The rank has returned and will join nothing more.
struct Finished {
  RankStatus status;
};
/// The rank has failed, and the run with it.
struct Failed {
  std::string sentence;
  bool of_communication = false; ///< perhaps only a consequence of what happened to another rank
  bool of_configuration = false; ///< the run could not begin: it is not valid
  RankStatus status;
};
/// The server's heartbeat.
struct Ping {
  bool status_wanted = false; ///< at once
  std::string host;           ///< what the host rank last did
};
/// The run is over: end this process.
struct Stop {
  int exit_code = 1;
  std::string sentence;
};
/// A signal for the rank's process.
struct Signal {
  int number = 0;
};

using Message = std::variant<Hello, Join, Welcome, Heartbeat, Finished, Failed, Ping, Stop, Signal>;

std::string encode(const Message& message);
/// Throws CommError if `bytes` are not exactly one message. Control characters in texts become '?'.
Message decode(std::string_view bytes);

/// The hash that proves knowledge of `secret`: `role` is "client" or "server".
Key proof(const Key& secret, std::string_view role, const Key& server_nonce, const Join& join);

/// The key of a connection's frames, from the proofs of both sides.
Key session_key(const Key& secret, const Key& client_proof, const Key& server_proof);

} // namespace pentatron::comm::control
