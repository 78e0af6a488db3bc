#include "pentatron/comm/control/connection.h"

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"

#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace pentatron::comm::control {

namespace {

constexpr size_t kTagBytes = 8;
constexpr size_t kMostQueued = 8 * kMaxMessageBytes;

std::string reason(int error = errno) {
  return std::strerror(error);
}

void set_up(int fd) {
  const int on = 1;
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

uint32_t load_length(std::string_view bytes) {
  uint32_t length = 0;
  for (int i = 0; i < 4; ++i) length |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return length;
}

void append(std::string& bytes, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

/// Connects within `timeout_ms`; the error otherwise.
int finish_connect(int fd, const addrinfo& to, int timeout_ms) {
  set_up(fd);
  if (::connect(fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{fd, POLLOUT, 0};
  if (::poll(&wait, 1, timeout_ms) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

/// Errors of accept() that concern one connection or will pass; see accept(2).
bool may_pass(int error) {
  switch (error) {
  case EAGAIN:
  case EINTR:
  case ECONNABORTED:
  case EPERM:
  case ENETDOWN:
  case EPROTO:
  case ENOPROTOOPT:
  case EHOSTDOWN:
  case ENONET:
  case EHOSTUNREACH:
  case EOPNOTSUPP:
  case ENETUNREACH:
    return true;
  default:
    return false;
  }
}

} // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int Descriptor::release() {
  return std::exchange(fd_, -1);
}

std::string Address::endpoint() const {
  return fmt::format("{}:{}", host, port);
}

Address make_address(std::string_view endpoint, std::string_view secret) {
  const size_t colon = endpoint.rfind(':');
  Address address;
  bool valid = colon != std::string_view::npos && colon > 0 && colon < 256;
  if (valid) {
    address.host = endpoint.substr(0, colon);
    const char* const end = endpoint.data() + endpoint.size();
    const auto read = std::from_chars(endpoint.data() + colon + 1, end, address.port);
    valid = read.ec == std::errc() && read.ptr == end && address.port > 0 && address.port < 65536;
  }
  if (!valid)
    raise<ConfigError>("the address of the control channel is not host:port\n  try: start the "
                       "ranks with pentatron train --ranks N");
  address.secret = key_from_hex(secret);
  return address;
}

Descriptor listen(bool all_interfaces, int& port) {
  Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) require_descriptors(errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(all_interfaces ? INADDR_ANY : INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t size = sizeof address;
  const int on = 1; // a port that was used a moment ago may be used again
  if (port > 0) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd.valid() || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    raise<CommError>("cannot listen on {}:{} ({})", all_interfaces ? "0.0.0.0" : "127.0.0.1", port,
                     reason());
  port = ntohs(address.sin_port);
  return fd;
}

Descriptor accept(const Descriptor& listener) {
  Descriptor fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) {
    set_up(fd.get());
    return fd;
  }
  const int error = errno;
  require_descriptors(error);
  if (!may_pass(error)) raise<CommError>("cannot accept connections ({})", reason(error));
  return fd;
}

Descriptor connect(const Address& address, double timeout_s) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    if (error == EAI_MEMORY) require_descriptors(ENOMEM);
    if (error == EAI_SYSTEM) require_descriptors(errno);
    raise<CommError>("the host {} is unknown ({})", address.host, ::gai_strerror(error));
  }
  int error = ECONNREFUSED;
  Descriptor result;
  for (const addrinfo* one = found; one != nullptr && !result.valid(); one = one->ai_next) {
    Descriptor fd(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
    error = fd.valid() ? finish_connect(fd.get(), *one, static_cast<int>(timeout_s * 1000)) : errno;
    if (error == 0) result = std::move(fd);
  }
  ::freeaddrinfo(found);
  if (result.valid()) return result;
  require_descriptors(error);
  raise<CommError>("{} does not answer ({})", address.endpoint(), reason(error));
}

std::string machine_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 64> space{};
  const ssize_t size = ::readlink("/proc/self/ns/pid", space.data(), space.size());
  if (boot.empty() || size <= 0) return "";
  return boot + " " + std::string(space.data(), static_cast<size_t>(size));
}

Connection::Connection(Descriptor descriptor, Side side)
    : descriptor_(std::move(descriptor)), side_(side) {}

void Connection::authenticate(const Key& key) {
  key_ = key;
}

uint64_t Connection::tag(bool incoming, std::string_view content) {
  if (!key_) return 0;
  std::string signed_text;
  signed_text.reserve(content.size() + 9);
  const bool from_server = (side_ == Side::kServer) != incoming;
  signed_text += from_server ? 's' : 'c';
  append(signed_text, incoming ? received_++ : sent_++, 8);
  signed_text += content;
  const Key hash = siphash(*key_, signed_text);
  uint64_t result = 0;
  for (size_t i = 0; i < kTagBytes; ++i) result |= uint64_t{hash[i]} << (8 * i);
  return result;
}

void Connection::send(const Message& message) {
  if (!open()) return;
  const std::string content = encode(message);
  append(out_, content.size(), 4);
  out_ += content;
  append(out_, tag(false, content), kTagBytes);
  if (out_.size() > kMostQueued)
    close();
  else
    flush();
}

void Connection::flush() {
  while (open() && !out_.empty()) {
    const ssize_t count = ::send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0)
      out_.erase(0, static_cast<size_t>(count));
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return;
    else if (errno != EINTR)
      close();
  }
}

bool Connection::receive() {
  std::array<char, 65536> buffer;
  // About one message at most: next() comes before more is read.
  const size_t most = key_ ? kMaxMessageBytes : kMaxHandshakeBytes;
  while (in_.size() <= most) {
    const ssize_t count = ::recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0)
      in_.append(buffer.data(), static_cast<size_t>(count));
    else if (count < 0 && errno == EINTR)
      continue;
    else
      return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  return true;
}

std::optional<Message> Connection::next() {
  if (in_.size() < 4) return std::nullopt;
  const size_t length = load_length(in_);
  if (length > (key_ ? kMaxMessageBytes : kMaxHandshakeBytes))
    raise<CommError>("a message of the control channel has an invalid size of {} bytes", length);
  if (in_.size() < 4 + length + kTagBytes) return std::nullopt;
  const std::string_view content = std::string_view(in_).substr(4, length);
  uint64_t given = 0;
  for (size_t i = 0; i < kTagBytes; ++i)
    given |= uint64_t{static_cast<uint8_t>(in_[4 + length + i])} << (8 * i);
  if (given != tag(true, content))
    raise<CommError>("a message of the control channel is not authentic");
  Message message = decode(content);
  in_.erase(0, 4 + length + kTagBytes);
  return message;
}

} // namespace pentatron::comm::control
