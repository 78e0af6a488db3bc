/// Descriptors, addresses, and connections that carry framed messages without blocking.
///
/// A frame is a length (4 bytes), that many bytes, and a tag (8 bytes): the hash of direction,
/// number and content under the connection's key, so a party without the job secret cannot add,
/// change, repeat or reorder frames after the handshake.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/comm/control/message.h"

namespace pentatron::comm::control {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();

 private:
  int fd_ = -1;
};

/// Where the control channel is and what opens it.
struct Address {
  std::string host;
  int port = 0;
  Key secret{};

  /// "127.0.0.1:4711": without the secret.
  std::string endpoint() const;
};

/// Throws ConfigError unless `endpoint` is host:port and `secret` 32 hexadecimal digits.
Address make_address(std::string_view endpoint, std::string_view secret);

// These throw OutOfDescriptors if no descriptor is left: a later attempt would fail, too.

/// Listens on 127.0.0.1, or on every interface, on `port`; 0 is set to a port that was free. Throws
/// CommError.
Descriptor listen(bool all_interfaces, int& port);
/// Returns an invalid descriptor if no connection is pending. Throws CommError if `listener` takes
/// no more connections.
Descriptor accept(const Descriptor& listener);
/// Blocks for at most `timeout_s`. Throws CommError if the peer does not answer.
Descriptor connect(const Address& address, double timeout_s);

/// Equal on two processes exactly if a process id means the same to both.
std::string machine_identity();

class Connection {
 public:
  enum class Side : uint8_t { kServer, kClient };

  Connection() = default;
  Connection(Descriptor descriptor, Side side);

  /// From now on frames are authenticated under `key` and may have kMaxMessageBytes.
  void authenticate(const Key& key);

  int fd() const { return descriptor_.get(); }
  bool open() const { return descriptor_.valid(); }
  void close() { descriptor_ = Descriptor(); }

  /// Queues a message and writes what the socket takes. Closes the connection if the peer has gone
  /// or reads nothing for too long.
  void send(const Message& message);
  void flush();
  bool wants_to_write() const { return !out_.empty(); }
  /// Reads what has come; false when the peer has closed or the connection is broken.
  bool receive();
  /// The next whole message. Throws CommError on one that is damaged or not authentic.
  std::optional<Message> next();

 private:
  uint64_t tag(bool incoming, std::string_view content);

  Descriptor descriptor_;
  Side side_ = Side::kClient;
  std::optional<Key> key_;
  uint64_t sent_ = 0, received_ = 0;
  std::string in_, out_;
};

} // namespace pentatron::comm::control
