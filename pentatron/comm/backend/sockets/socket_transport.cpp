#include "pentatron/comm/backend/sockets/socket_transport.h"

#include "pentatron/base/error.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unordered_map>

namespace pentatron::comm::sockets {

namespace {

using control::Descriptor;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kMagic = 0x4d544e50;            // "PNTM"
constexpr int64_t kInputBytes = 65536;             // small messages are read many at a time
constexpr int64_t kMostPerPass = int64_t{4} << 20; // of one peer, so that none waits for another
constexpr int64_t kLargestMessage = int64_t{1} << 31;
// A rank whose peer has died goes on waiting for so long: the monitor of the run asks what it waits
// for, and names the one that died.
constexpr std::chrono::seconds kMourning{3};

/// Goes before each message. Both ends run the same program on machines of one byte order.
struct Header {
  uint32_t magic;
  int32_t tag;
  int64_t bytes;
};

struct Outgoing {
  Header header;
  const std::byte* data;
  int64_t id;
  int64_t sent = 0; ///< of header and data together

  int64_t size() const { return static_cast<int64_t>(sizeof(Header)) + header.bytes; }
};

/// A receive that waits for its message.
struct Posted {
  std::byte* data;
  int64_t bytes, id;
};

/// A message that nobody waits for yet.
struct Early {
  std::vector<std::byte> data;
  int64_t have = 0;
};

struct Peer {
  int rank = 0;
  Descriptor socket;
  std::string gone;                               ///< why nothing comes or goes any more
  std::optional<Clock::time_point> mourned_until; ///< then what waits for it fails
  bool takes_nothing = false; ///< the socket; what it has sent before can still be read
  std::deque<Outgoing> out;
  std::unordered_map<int, std::deque<Posted>> posted; ///< by tag
  std::unordered_map<int, std::deque<Early>> early;   ///< by tag; only the newest of all is partial

  std::vector<std::byte> input; ///< read and not yet taken: [begin, end)
  int64_t begin = 0, end = 0;
  // The message that is arriving, while part of its body is not yet read; `input` is empty then.
  std::byte* body = nullptr;
  int64_t body_left = 0;
  int64_t arriving_id = -1;        ///< of the receive it is for
  int arriving_tag = -1;           ///< of a receive from any rank
  Posted arriving_any{};           ///< which it is
  Early* arriving_early = nullptr; ///< or where it is kept
};

class SocketTransport final : public messages::Transport {
 public:
  SocketTransport(int rank, std::vector<Descriptor> sockets)
      : rank_(rank), peers_(sockets.size()), polls_(sockets.size()) {
    for (size_t r = 0; r < sockets.size(); ++r) {
      Peer& peer = peers_[r];
      peer.rank = static_cast<int>(r);
      peer.socket = std::move(sockets[r]);
      polls_[r] = {peer.socket.get(), POLLIN, 0};
      if (!peer.socket.valid()) continue;
      peer.input.resize(kInputBytes);
      const int bytes = 4 << 20; // the system cuts it to what it allows
      ::setsockopt(peer.socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
      ::setsockopt(peer.socket.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
  }

  const char* name() const override { return "sockets"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  int largest_tag() const override { return INT_MAX; }

  void send(int to, int tag, const void* data, int64_t bytes, int64_t id) override {
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (!peer.gone.empty() && !peer.mourned_until) {
      ended_.push_back({id, peer.gone});
      return;
    }
    peer.out.push_back({{kMagic, tag, bytes}, static_cast<const std::byte*>(data), id});
    if (peer.out.size() == 1 && peer.gone.empty()) write_to(peer);
  }

  void receive(int from, int tag, void* data, int64_t bytes, int64_t id) override {
    const Posted posted{static_cast<std::byte*>(data), bytes, id};
    if (from == kAnyRank) {
      for (Peer& peer : peers_)
        if (take_early(peer, tag, posted)) return;
      from_any_[tag].push_back(posted);
      return;
    }
    Peer& peer = peers_[static_cast<size_t>(from)];
    if (take_early(peer, tag, posted)) return;
    if (peer.gone.empty() || peer.mourned_until)
      peer.posted[tag].push_back(posted);
    else
      ended_.push_back({id, peer.gone});
  }

  void cancel(int64_t id) override {
    for (Peer& peer : peers_)
      for (auto& [tag, queue] : peer.posted) {
        const auto found =
            std::find_if(queue.begin(), queue.end(), [&](const Posted& p) { return p.id == id; });
        if (found == queue.end()) continue;
        queue.erase(found);
        ended_.push_back({id, "cancelled"});
        return;
      }
  }

  void test(std::vector<Completion>& ended) override {
    if (poll_now())
      for (Peer& peer : peers_) {
        const short events = polls_[static_cast<size_t>(peer.rank)].revents;
        if ((events & POLLOUT) != 0) write_to(peer);
        if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(peer);
      }
    for (Peer& peer : peers_)
      if (peer.mourned_until && Clock::now() > *peer.mourned_until) give_up(peer);
    watch();
    ended.insert(ended.end(), std::make_move_iterator(ended_.begin()),
                 std::make_move_iterator(ended_.end()));
    ended_.clear();
  }

  void pause(std::chrono::steady_clock::duration longest) override {
    {
      const std::lock_guard lock(watched_mutex_);
      paused_.assign(polls_.begin(), polls_.end());
    }
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(longest).count();
    const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
    ::ppoll(paused_.data(), paused_.size(), &time, nullptr);
  }

  void close(bool) override {
    for (Peer& peer : peers_) {
      leave(peer, "this rank has left");
      give_up(peer);
    }
    ended_.clear();
    watch();
  }

 private:
  bool poll_now() {
    const std::lock_guard lock(watched_mutex_);
    return ::poll(polls_.data(), polls_.size(), 0) > 0;
  }

  /// Keeps in polls_ what there is to wait for.
  void watch() {
    const std::lock_guard lock(watched_mutex_);
    for (const Peer& peer : peers_) {
      pollfd& poll = polls_[static_cast<size_t>(peer.rank)];
      poll.fd = peer.gone.empty() ? peer.socket.get() : -1;
      poll.events =
          static_cast<short>(peer.out.empty() || peer.takes_nothing ? POLLIN : POLLIN | POLLOUT);
    }
  }

  void leave(Peer& peer, const std::string& why) {
    if (!peer.gone.empty()) return;
    peer.gone = why;
    peer.mourned_until = Clock::now() + kMourning;
    peer.socket = Descriptor();
    if (peer.arriving_tag >= 0) { // another rank's message may come
      from_any_[peer.arriving_tag].push_front(peer.arriving_any);
      peer.arriving_id = peer.arriving_tag = -1;
    }
    if (peer.arriving_early != nullptr) // nobody may take half a message
      for (auto& [tag, queue] : peer.early)
        if (!queue.empty() && &queue.back() == peer.arriving_early) queue.pop_back();
    peer.arriving_early = nullptr;
    peer.body_left = 0;
  }

  void give_up(Peer& peer) {
    peer.mourned_until.reset();
    for (const Outgoing& one : peer.out) ended_.push_back({one.id, peer.gone});
    peer.out.clear();
    for (auto& [tag, queue] : peer.posted)
      for (const Posted& one : queue) ended_.push_back({one.id, peer.gone});
    peer.posted.clear();
    if (peer.arriving_id >= 0) ended_.push_back({peer.arriving_id, peer.gone});
    peer.arriving_id = -1;
  }

  void write_to(Peer& peer) {
    int64_t budget = kMostPerPass;
    while (!peer.out.empty() && budget > 0 && !peer.takes_nothing) {
      std::array<iovec, 16> parts;
      size_t count = 0;
      for (Outgoing& one : peer.out) {
        if (count + 2 > parts.size()) break;
        constexpr auto kHead = static_cast<int64_t>(sizeof(Header));
        if (one.sent < kHead)
          parts[count++] = {reinterpret_cast<std::byte*>(&one.header) + one.sent,
                            static_cast<size_t>(kHead - one.sent)};
        const int64_t done = std::max<int64_t>(one.sent - kHead, 0);
        if (done < one.header.bytes)
          parts[count++] = {const_cast<std::byte*>(one.data) + done,
                            static_cast<size_t>(one.header.bytes - done)};
      }
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = count;
      ssize_t written = ::sendmsg(peer.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (written < 0) {
        if (errno == EINTR) continue;
        peer.takes_nothing = errno != EAGAIN && errno != EWOULDBLOCK;
        return;
      }
      budget -= written;
      while (written > 0) {
        Outgoing& one = peer.out.front();
        const int64_t step = std::min<int64_t>(written, one.size() - one.sent);
        one.sent += step;
        written -= step;
        if (one.sent < one.size()) break;
        ended_.push_back({one.id, ""});
        peer.out.pop_front();
      }
    }
  }

  void read_from(Peer& peer) {
    int64_t budget = kMostPerPass;
    while (peer.gone.empty() && budget > 0) {
      const std::array<iovec, 2> parts{
          iovec{peer.body, static_cast<size_t>(peer.body_left)},
          iovec{peer.input.data() + peer.end, static_cast<size_t>(kInputBytes - peer.end)}};
      const size_t skipped = peer.body_left == 0 ? 1 : 0;
      msghdr message{};
      message.msg_iov = const_cast<iovec*>(parts.data()) + skipped;
      message.msg_iovlen = parts.size() - skipped;
      const ssize_t got = ::recvmsg(peer.socket.get(), &message, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) {
        leave(peer, got == 0 ? "its process has closed the connection" : std::strerror(errno));
        return;
      }
      budget -= got;
      const int64_t of_body = std::min<int64_t>(got, peer.body_left);
      if (of_body > 0) take_body(peer, of_body);
      peer.end += got - of_body;
      parse(peer);
    }
  }

  /// `count` bytes more of the message that is arriving lie where they belong.
  void take_body(Peer& peer, int64_t count) {
    peer.body += count;
    peer.body_left -= count;
    if (peer.arriving_early != nullptr) peer.arriving_early->have += count;
    if (peer.body_left > 0) return;
    if (peer.arriving_id >= 0) ended_.push_back({peer.arriving_id, ""});
    peer.arriving_id = peer.arriving_tag = -1;
    peer.arriving_early = nullptr;
  }

  void parse(Peer& peer) {
    while (peer.body_left == 0 && peer.end - peer.begin >= static_cast<int64_t>(sizeof(Header))) {
      Header header;
      std::memcpy(&header, peer.input.data() + peer.begin, sizeof header);
      peer.begin += static_cast<int64_t>(sizeof header);
      if (header.magic != kMagic || header.tag < 0 || header.bytes < 0 ||
          header.bytes > kLargestMessage)
        raise<CommError>("rank {} sent an invalid message", peer.rank);
      begin_message(peer, header);
      const int64_t here = std::min(peer.end - peer.begin, peer.body_left);
      if (here > 0)
        std::memcpy(peer.body, peer.input.data() + peer.begin, static_cast<size_t>(here));
      peer.begin += here;
      take_body(peer, here);
    }
    std::memmove(peer.input.data(), peer.input.data() + peer.begin,
                 static_cast<size_t>(peer.end - peer.begin));
    peer.end -= peer.begin;
    peer.begin = 0;
  }

  void begin_message(Peer& peer, const Header& header) {
    std::deque<Posted>* waiting = &peer.posted[header.tag];
    const auto any = from_any_.find(header.tag);
    const bool takes_any = waiting->empty() && any != from_any_.end() && !any->second.empty();
    if (takes_any) waiting = &any->second;
    peer.body_left = header.bytes;
    if (waiting->empty()) {
      Early& early = peer.early[header.tag].emplace_back();
      early.data.resize(static_cast<size_t>(header.bytes));
      peer.arriving_early = &early;
      peer.body = early.data.data();
      return;
    }
    const Posted posted = waiting->front();
    waiting->pop_front();
    check_fits(peer, header.bytes, posted);
    peer.arriving_id = posted.id;
    peer.body = posted.data;
    if (!takes_any) return;
    peer.arriving_tag = header.tag;
    peer.arriving_any = posted;
  }

  bool take_early(Peer& peer, int tag, const Posted& posted) {
    const auto found = peer.early.find(tag);
    if (found == peer.early.end() || found->second.empty()) return false;
    Early& early = found->second.front();
    const auto bytes = static_cast<int64_t>(early.data.size());
    check_fits(peer, bytes, posted);
    if (early.have > 0)
      std::memcpy(posted.data, early.data.data(), static_cast<size_t>(early.have));
    if (early.have < bytes) { // the rest goes to its place at once
      peer.arriving_early = nullptr;
      peer.arriving_id = posted.id;
      peer.body = posted.data + early.have;
    } else {
      ended_.push_back({posted.id, ""});
    }
    found->second.pop_front();
    return true;
  }

  static void check_fits(const Peer& peer, int64_t bytes, const Posted& posted) {
    if (bytes > posted.bytes)
      raise<CommError>("rank {} sent {} bytes instead of {}", peer.rank, bytes, posted.bytes);
  }

  const int rank_;
  std::vector<Peer> peers_;
  std::unordered_map<int, std::deque<Posted>> from_any_; ///< by tag
  std::vector<Completion> ended_;
  std::vector<pollfd> polls_; ///< by rank
  std::mutex watched_mutex_;  ///< of polls_, between test() and pause()
  std::vector<pollfd> paused_;
};

} // namespace

std::unique_ptr<messages::Transport> make_transport(int rank, std::vector<Descriptor> peers) {
  return std::make_unique<SocketTransport>(rank, std::move(peers));
}

} // namespace pentatron::comm::sockets
