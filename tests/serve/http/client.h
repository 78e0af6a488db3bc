/// A client that sends whatever bytes a test wants.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace pentatron::test {

class RawClient {
 public:
  explicit RawClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~RawClient() { leave(); }
  RawClient(const RawClient&) = delete;

  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return; // the server has closed
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  /// Bytes until `end` has come, the server closes, or the time is over.
  std::string read_until(std::string_view end, double seconds = 5) {
    while (received_.find(end) == std::string::npos && receive(seconds)) {
    }
    const size_t found = received_.find(end);
    const size_t count = found == std::string::npos ? received_.size() : found + end.size();
    std::string taken = received_.substr(0, count);
    received_.erase(0, count);
    return taken;
  }
  std::string read_all(double seconds = 5) {
    while (receive(seconds)) {
    }
    return std::exchange(received_, {});
  }
  /// The head and body of one answer with a length.
  std::string read_answer() {
    std::string head = read_until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    const size_t length = std::stoul(head.substr(at + 16));
    while (received_.size() < length && receive(5)) {
    }
    head += received_.substr(0, length);
    received_.erase(0, length);
    return head;
  }
  void leave() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  bool receive(double seconds) {
    pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, static_cast<int>(seconds * 1000)) <= 0) return false;
    char buffer[65536];
    const ssize_t got = ::recv(socket_, buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    received_.append(buffer, static_cast<size_t>(got));
    return true;
  }

  int socket_;
  std::string received_;
};

} // namespace pentatron::test
