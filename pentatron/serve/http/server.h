/// An HTTP/1.1 server with limits: each request is handed to a function, which may answer later and
/// from any thread, at once or in pieces.
///
/// Every connection is limited in bytes, headers and time, and their number is limited. A client
/// that disconnects is noticed while its answer is being made.
/// Source: RFC 9112; server-sent events are pieces of a chunked body.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "pentatron/serve/http/message.h"

namespace pentatron::serve::http {

struct ServerOptions {
  std::string address = "127.0.0.1"; ///< IPv4 or IPv6
  uint16_t port = 0;                 ///< 0: any free one
  int threads = 2;
  int64_t max_connections = 128;
  uint32_t max_header_bytes = 16 << 10;
  int64_t max_headers = 64;
  uint64_t max_body_bytes = 4 << 20;
  int64_t max_unsent_bytes = 8 << 20; ///< of an answer that its client does not read
  double request_timeout_s = 30;      ///< from the first byte of a request to its last
  double idle_timeout_s = 75;         ///< between requests
  double write_timeout_s = 30;        ///< for a client to take a piece of an answer
  Guard guard;
};

/// The answer to one request: respond(), or begin(), write() and end(). From any thread; what comes
/// after the client has gone is dropped. If it is destroyed before the end, the client gets status
/// 500, or the connection is closed within a stream. The answer to a HEAD request is sent without
/// its content.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void respond(Response response) = 0;
  virtual void begin(const std::string& content_type) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  /// True from when the client has gone.
  virtual std::shared_ptr<const std::atomic<bool>> gone() const = 0;
};

class Server {
 public:
  struct Calls {
    /// On a thread of the server.
    std::function<void(Request request, std::shared_ptr<Exchange> exchange)> handle;
    std::function<void()> client_gone = {};        ///< some Exchange::gone() has become true
    std::function<void(int64_t)> connections = {}; ///< their number has changed
    std::function<void()> refused = {};            ///< a connection, because too many are open
    std::function<void(const Request& head, int status)> answered = {}; ///< an answer is begun
  };

  /// Begins to listen. Throws ConfigError if the address or port cannot be used.
  Server(const ServerOptions& options, Calls calls);
  ~Server();
  Server(const Server&) = delete;

  /// Begins to accept connections.
  void start();
  uint16_t port() const;
  /// From now on, closes each connection after its next answer.
  void begin_stop();
  /// Takes no new connections, closes those without a request, waits until the answers are sent, at
  /// most `seconds`, and closes everything.
  void stop(double seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace pentatron::serve::http
