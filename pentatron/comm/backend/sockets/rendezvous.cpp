#include "pentatron/comm/backend/sockets/rendezvous.h"

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/comm/backend/sockets/torchrun_store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace pentatron::comm::sockets {

namespace {

using control::Address;
using control::Descriptor;
using control::Key;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetry{20};
constexpr double kHandshake = 5; // s, of one connection: a stranger holds up nobody for longer

Clock::time_point in(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string reason(int error = errno) {
  return std::strerror(error);
}

/// Whether `fd` is ready for `events` before the deadline.
bool ready(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd poll{fd, events, 0};
    const int count = ::poll(&poll, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (count > 0) return true;
    if (count == 0 || errno != EINTR) return false;
  }
}

bool write_all(int fd, const void* data, size_t bytes, Clock::time_point deadline) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::send(fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
    if (count < 0 && !ready(fd, POLLOUT, deadline)) return false;
    if (count < 0) continue;
    from += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

bool read_all(int fd, void* data, size_t bytes, Clock::time_point deadline) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::recv(fd, to, bytes, MSG_DONTWAIT);
    if (count == 0) return false;
    if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
    if (count < 0 && !ready(fd, POLLIN, deadline)) return false;
    if (count < 0) continue;
    to += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

/// What each end says of itself.
struct Introduction {
  std::array<char, 8> magic = {'p', 'n', 't', 'r', 'a', 'n', 'k', '1'};
  int32_t rank = 0, size = 0;
  int32_t port = 0; ///< where it listens, if the ranks are on several machines
  int32_t zero = 0;
  Key nonce{};
};

Key proof(const Key& secret, bool connector, const Introduction& own, const Introduction& other) {
  std::string text(connector ? "connects" : "listens");
  text.append(reinterpret_cast<const char*>(&own), sizeof own);
  text.append(reinterpret_cast<const char*>(other.nonce.data()), other.nonce.size());
  return control::siphash(secret, text);
}

/// The other end's introduction, if it belongs to this job.
std::optional<Introduction> shake_hands(int fd, bool connector, const Key& secret, int rank,
                                        int size, int port, Clock::time_point deadline) {
  deadline = std::min(deadline, in(kHandshake));
  const Introduction own{.rank = rank, .size = size, .port = port, .nonce = control::random_key()};
  Introduction other;
  if (!write_all(fd, &own, sizeof own, deadline) || !read_all(fd, &other, sizeof other, deadline) ||
      other.magic != own.magic || other.size != size || other.rank < 0 || other.rank >= size)
    return std::nullopt;
  const Key given = proof(secret, connector, own, other);
  Key theirs{};
  if (!write_all(fd, given.data(), given.size(), deadline) ||
      !read_all(fd, theirs.data(), theirs.size(), deadline) ||
      !control::equal_keys(theirs, proof(secret, !connector, other, own)))
    return std::nullopt;
  return other;
}

[[noreturn]] void raise_missing(const std::vector<Descriptor>& sockets, const Launch& launch,
                                double timeout_s) {
  std::vector<int> missing;
  for (int rank = 0; rank < launch.world_size; ++rank)
    if (rank != launch.rank && !sockets[static_cast<size_t>(rank)].valid()) missing.push_back(rank);
  raise<CommError>("rank {} of {} could not connect to rank{} {} within {} s\n  try: check why {} "
                   "not started, or increase dist.timeout_s",
                   launch.rank, launch.world_size, missing.size() > 1 ? "s" : "",
                   fmt::join(missing, ", "), timeout_s,
                   missing.size() > 1 ? "they have" : "it has");
}

/// Connects to lower ranks and takes connections of higher ones.
class Meeting {
 public:
  Meeting(const Launch& launch, Descriptor listener, const Key& secret, int port, double timeout_s)
      : launch_(launch), listener_(std::move(listener)), secret_(secret), port_(port),
        timeout_s_(timeout_s), deadline_(in(timeout_s)),
        sockets_(static_cast<size_t>(launch.world_size)),
        introductions_(static_cast<size_t>(launch.world_size)) {}

  Clock::time_point deadline() const { return deadline_; }
  double left() const {
    return std::max(0.0, std::chrono::duration<double>(deadline_ - Clock::now()).count());
  }

  /// `try_once` returns a connection, or an invalid one while nobody listens there.
  void connect(int rank, const std::function<Descriptor()>& try_once) {
    while (Clock::now() < deadline_) {
      if (Descriptor socket = try_once(); socket.valid()) {
        const auto other = shake_hands(socket.get(), true, secret_, launch_.rank,
                                       launch_.world_size, port_, deadline_);
        if (other && other->rank == rank) {
          keep(std::move(socket), *other);
          return;
        }
      }
      std::this_thread::sleep_for(kRetry);
    }
    raise_missing(sockets_, launch_, timeout_s_);
  }

  void accept(const std::function<bool(int fd)>& trusts) {
    int missing = launch_.world_size - 1 - launch_.rank;
    while (missing > 0) {
      if (!ready(listener_.get(), POLLIN, deadline_)) raise_missing(sockets_, launch_, timeout_s_);
      Descriptor socket = control::accept(listener_);
      if (!socket.valid() || !trusts(socket.get())) continue;
      const auto other = shake_hands(socket.get(), false, secret_, launch_.rank, launch_.world_size,
                                     port_, deadline_);
      if (!other || other->rank <= launch_.rank) continue;
      if (sockets_[static_cast<size_t>(other->rank)].valid())
        raise<CommError>("two processes of this job are rank {} of {}\n  try: start each rank once",
                         other->rank, launch_.world_size);
      keep(std::move(socket), *other);
      --missing;
    }
  }

  int socket(int rank) const { return sockets_[static_cast<size_t>(rank)].get(); }
  const Introduction& introduction(int rank) const {
    return introductions_[static_cast<size_t>(rank)];
  }
  [[noreturn]] void raise_lost(int rank) const {
    raise<CommError>("rank {} of {} left while the ranks were connecting", rank,
                     launch_.world_size);
  }
  std::vector<Descriptor> take() { return std::move(sockets_); }

 private:
  void keep(Descriptor socket, const Introduction& other) {
    sockets_[static_cast<size_t>(other.rank)] = std::move(socket);
    introductions_[static_cast<size_t>(other.rank)] = other;
  }

  const Launch& launch_;
  Descriptor listener_;
  const Key secret_;
  const int port_;
  const double timeout_s_;
  const Clock::time_point deadline_;
  std::vector<Descriptor> sockets_;
  std::vector<Introduction> introductions_;
};

// One machine.

/// An abstract name: it is in no file system, and goes with its socket.
struct LocalName {
  sockaddr_un address{};
  socklen_t size = 0;

  LocalName(std::string_view job, int rank) {
    const std::string name =
        fmt::format("pentatron/{}/{}/{}", ::getuid(), control::to_hex(control::siphash(Key{}, job)),
                    rank); // shorter than sun_path
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
};

Descriptor local_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.valid()) return socket;
  require_descriptors(errno);
  raise<CommError>("cannot create a Unix socket ({})", reason());
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::getuid();
}

/// What tells this job from others of the same user.
std::string job_name(const Launch& launch, const Environment& environment) {
  const auto text = [&](std::string_view name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  return fmt::format("{} {} {}:{} {}", config::to_string(launch.launcher), launch.job,
                     launch.master_addr, launch.master_port, text("TORCHELASTIC_RESTART_COUNT"));
}

std::vector<Descriptor> connect_here(const Launch& launch, const Environment& environment,
                                     double timeout_s) {
  const std::string job = job_name(launch, environment);
  const LocalName own(job, launch.rank);
  Descriptor listener = local_socket();
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&own.address), own.size) != 0) {
    if (errno == EADDRINUSE)
      raise<CommError>("another process on this machine is rank {} of a job with MASTER_ADDR={} "
                       "MASTER_PORT={}\n  try: another MASTER_PORT",
                       launch.rank, launch.master_addr, launch.master_port);
    raise<CommError>("cannot listen on a Unix socket ({})", reason());
  }
  if (::listen(listener.get(), SOMAXCONN) != 0)
    raise<CommError>("cannot listen on a Unix socket ({})", reason());
  Meeting meeting(launch, std::move(listener), Key{}, 0, timeout_s);
  for (int rank = 0; rank < launch.rank; ++rank) {
    const LocalName name(job, rank);
    meeting.connect(rank, [&] {
      Descriptor socket = local_socket();
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name.address), name.size) != 0)
        return Descriptor();
      if (same_user(socket.get())) return socket;
      raise<CommError>("a process of another user listens on the address of rank {}", rank);
    });
  }
  meeting.accept(same_user);
  return meeting.take();
}

// Several machines.

std::string host_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  std::array<char, INET_ADDRSTRLEN> text{};
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size()) == nullptr)
    return "";
  return text.data();
}

/// Rank 0's address with the job's secret; `listener` is of this rank.
Address find_rank_0(const Launch& launch, const Environment& environment, double timeout_s,
                    Descriptor& listener, int& port) {
  const bool first = launch.rank == 0;
  if (serves_store(environment)) {
    listener = control::listen(true, port);
    const Key secret = control::random_key();
    const std::string said = exchange_by_store(
        launch, environment, timeout_s,
        first ? fmt::format("{}:{} {}", launch.master_addr, port, control::to_hex(secret)) : "");
    const std::vector<std::string_view> words = split(said, ' ');
    if (words.size() != 2)
      raise<CommError>("torchrun's store does not contain the address of rank 0");
    return control::make_address(words[0], words[1]);
  }
  const auto secret = environment.find(kSecretVariable);
  if (secret == environment.end() || launch.master_addr.empty())
    raise<ConfigError>(
        "{} of {} ranks are on other machines, but {} {} not set, so ranks cannot authenticate "
        "each other\n  try: {}=$(openssl rand -hex 16) MASTER_ADDR=HOST MASTER_PORT=29500, with "
        "equal values on all machines, or mpirun",
        launch.world_size - launch.local_size, launch.world_size, kSecretVariable,
        launch.master_addr.empty() ? "or MASTER_ADDR is" : "is", kSecretVariable);
  port = first ? launch.master_port : 0;
  listener = control::listen(true, port);
  return control::make_address(fmt::format("{}:{}", launch.master_addr, launch.master_port),
                               secret->second);
}

std::vector<Descriptor> connect_machines(const Launch& launch, const Environment& environment,
                                         double timeout_s) {
  Descriptor listener;
  int port = 0;
  const Address root = find_rank_0(launch, environment, timeout_s, listener, port);
  Meeting meeting(launch, std::move(listener), root.secret, port, timeout_s);
  const auto anyone = [](int) { return true; }; // the handshake tells
  const auto connect_to = [&](int rank, const Address& address) {
    meeting.connect(rank, [&] {
      try {
        return control::connect(address, std::min(meeting.left(), kHandshake));
      } catch (const CommError&) { // not there yet
        return Descriptor();
      }
    });
  };
  // Rank 0 tells every rank where each listens.
  constexpr uint32_t kMostBytes = 1 << 22;
  if (launch.rank == 0) {
    meeting.accept(anyone);
    std::string list;
    for (int rank = 1; rank < launch.world_size; ++rank)
      list +=
          fmt::format("{}:{}\n", host_of(meeting.socket(rank)), meeting.introduction(rank).port);
    const auto bytes = static_cast<uint32_t>(list.size());
    for (int rank = 1; rank < launch.world_size; ++rank)
      if (!write_all(meeting.socket(rank), &bytes, sizeof bytes, meeting.deadline()) ||
          !write_all(meeting.socket(rank), list.data(), bytes, meeting.deadline()))
        meeting.raise_lost(rank);
    return meeting.take();
  }
  connect_to(0, root);
  uint32_t bytes = 0;
  std::string list;
  if (!read_all(meeting.socket(0), &bytes, sizeof bytes, meeting.deadline()) || bytes > kMostBytes)
    meeting.raise_lost(0);
  list.resize(bytes);
  if (!read_all(meeting.socket(0), list.data(), bytes, meeting.deadline())) meeting.raise_lost(0);
  const std::vector<std::string_view> endpoints = split(list, '\n');
  if (endpoints.size() != static_cast<size_t>(launch.world_size)) meeting.raise_lost(0);
  for (int rank = 1; rank < launch.rank; ++rank)
    connect_to(rank, control::make_address(endpoints[static_cast<size_t>(rank - 1)],
                                           control::to_hex(root.secret)));
  meeting.accept(anyone);
  return meeting.take();
}

} // namespace

std::vector<Descriptor> connect_ranks(const Launch& launch, const Environment& environment,
                                      double timeout_s) {
  return launch.spans_machines() ? connect_machines(launch, environment, timeout_s)
                                 : connect_here(launch, environment, timeout_s);
}

} // namespace pentatron::comm::sockets
