#include "pentatron/comm/control/server.h"

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/comm/control/diagnose.h"
#include "pentatron/comm/control/memory_kill.h"
#include "pentatron/comm/control/process.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

namespace pentatron::comm::control {

namespace {

using Clock = std::chrono::steady_clock;
using Kind = Verdict::Kind;

constexpr size_t kMaxStrangers = 64; // connections that have not joined
constexpr double kHandshakeS = 10;   // for them to join
constexpr double kAcceptPauseS = 1;  // after a connection that could not be taken
constexpr double kGatherS = 0.5;     // for fresh reports before a verdict
constexpr double kSuspendedS = 2;    // this process itself did not run for so long

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}
double since(Clock::time_point then, Clock::time_point now) {
  return std::chrono::duration<double>(now - then).count();
}

struct Stranger {
  Connection connection;
  Key nonce;
  Clock::time_point deadline;
};

struct Rank {
  enum class State : uint8_t { kAbsent, kRunning, kFinished, kLost };

  State state = State::kAbsent;
  Connection connection;
  Descriptor process; ///< a pidfd, of a process on this machine
  int64_t pid = 0;    ///< likewise, or 0
  bool near = false;  ///< whether its process is, or was, on this machine
  Clock::time_point heard;
  Clock::time_point reported; ///< when `view` came
  std::optional<int> exit_status;
  RankView view;
};

} // namespace

SilenceLimits silence_limits(double heartbeat_s, double timeout_s) {
  return {std::max(2.5 * heartbeat_s, 0.3),
          std::min(std::max(20 * heartbeat_s, 20.0), std::max(timeout_s, 4 * heartbeat_s))};
}

class Server::Loop {
 public:
  explicit Loop(ServerOptions options)
      : options_(std::move(options)),
        limits_(silence_limits(options_.heartbeat_s, options_.timeout_s)), ranks_(options_.ranks),
        machine_(machine_identity()) {
    address_.secret = random_key();
    address_.host = options_.advertised_host;
    listener_ = listen(options_.all_interfaces, address_.port);
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.valid()) {
      require_descriptors(errno);
      raise<CommError>("the control channel cannot start ({})", std::strerror(errno));
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the program's own threads
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Loop() {
    post([this] { closing_ = true; });
    thread_.join();
  }

  const Address& address() const { return address_; }

  /// Runs `job` on the loop's thread.
  void post(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void report_exit(int rank, int status) {
    post([this, rank, status] {
      ranks_[rank].exit_status = status;
      if (ranks_[rank].state != Rank::State::kFinished) lose(rank);
    });
  }

  int joined() const { return joined_; }

  void send_signal(int number) {
    post([this, number] {
      for (Rank& rank : ranks_)
        if (rank.state == Rank::State::kRunning) rank.connection.send(Signal{number});
    });
  }

  void signal_processes(int number) {
    std::promise<void> done;
    post([&] {
      for (const Rank& rank : ranks_)
        if (rank.process.valid()) signal_process(rank.process, number);
      done.set_value();
    });
    done.get_future().wait();
  }

  void end_run(const Verdict& verdict) {
    post([this, verdict] { decide(verdict); });
  }

  std::optional<Verdict> verdict() const {
    const std::lock_guard lock(mutex_);
    return verdict_;
  }

  void wait_until_over() {
    std::unique_lock lock(mutex_);
    over_changed_.wait(lock, [this] { return over_; });
  }
  bool over() const {
    const std::lock_guard lock(mutex_);
    return over_;
  }

 private:
  // A reason to end the run, while fresh reports of the ranks are awaited.
  struct Suspicion {
    Kind kind;
    int rank;
    std::string sentence;
    bool of_communication;
    Clock::time_point since;
    bool of_configuration = false;
  };

  void run() {
    last_turn_ = Clock::now();
    while (!closing_) {
      wait_for_events();
      run_jobs();
      now_ = Clock::now();
      forgive_suspension();
      meet_strangers();
      for (int rank = 0; rank < options_.ranks; ++rank) hear(rank);
      if (!decided_) watch();
      if (decided_) bring_to_end();
      update_over();
    }
  }

  void wait_for_events() {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    if (may_accept()) polled.push_back({listener_.get(), POLLIN, 0});
    const auto add = [&](const Connection& connection) {
      const auto events =
          static_cast<short>(connection.wants_to_write() ? POLLIN | POLLOUT : POLLIN);
      if (connection.open()) polled.push_back({connection.fd(), events, 0});
    };
    for (const Stranger& stranger : strangers_) add(stranger.connection);
    for (const Rank& rank : ranks_) {
      add(rank.connection);
      if (rank.process.valid()) polled.push_back({rank.process.get(), POLLIN, 0});
    }
    const bool busy = suspicion_ || decided_;
    const double pause = busy ? 0.02 : std::min(options_.heartbeat_s / 4, 0.5);
    ::poll(polled.data(), polled.size(), std::max(1, static_cast<int>(pause * 1000)));
  }

  void run_jobs() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = ::read(wake_.get(), &count, sizeof count);
    std::deque<std::function<void()>> jobs;
    {
      const std::lock_guard lock(mutex_);
      jobs.swap(jobs_);
    }
    now_ = Clock::now();
    for (const auto& job : jobs) job();
  }

  /// A monitor that was itself stopped, as by Ctrl-Z, has heard nobody meanwhile.
  void forgive_suspension() {
    const auto gap = now_ - last_turn_;
    if (gap > seconds(0.8 * limits_.stopped_s)) absent_until_ = now_ + seconds(options_.grace_s);
    if (gap > seconds(kSuspendedS)) {
      for (Rank& rank : ranks_) rank.heard += gap;
      if (suspicion_ && suspicion_->kind == Kind::kSilent) suspicion_.reset();
    }
    last_turn_ = now_;
  }

  bool may_accept() const { return strangers_.size() < kMaxStrangers && now_ >= accepts_again_; }

  /// The next connection; invalid when nobody is waiting. A rank that cannot join ends the run;
  /// once all have joined, whoever else waits goes on waiting.
  Descriptor next_connection() {
    try {
      return accept(listener_);
    } catch (const Error& error) {
      accepts_again_ = now_ + seconds(kAcceptPauseS); // poll() would return at once again and again
      const auto absent = std::ranges::find(ranks_, Rank::State::kAbsent, &Rank::state);
      if (absent != ranks_.end())
        suspect({Kind::kStart, static_cast<int>(absent - ranks_.begin()),
                 fmt::format("the monitor of the ranks: {}", error.what()), false, now_});
      return {};
    }
  }

  void meet_strangers() {
    while (may_accept()) {
      Descriptor fd = next_connection();
      if (!fd.valid()) break;
      Stranger& stranger =
          strangers_.emplace_back(Stranger{Connection(std::move(fd), Connection::Side::kServer),
                                           random_key(), now_ + seconds(kHandshakeS)});
      stranger.connection.send(Hello{stranger.nonce});
    }
    for (Stranger& stranger : strangers_) {
      try {
        const bool alive = stranger.connection.open() && stranger.connection.receive();
        const std::optional<Message> message = stranger.connection.next();
        if (message)
          admit(stranger, *message);
        else if (!alive || now_ > stranger.deadline)
          stranger.connection.close();
      } catch (const Error&) {
        stranger.connection.close();
      }
    }
    std::erase_if(strangers_, [](const Stranger& one) { return !one.connection.open(); });
  }

  void admit(Stranger& stranger, const Message& message) {
    const Join* join = std::get_if<Join>(&message);
    if (!join ||
        !equal_keys(join->proof, proof(address_.secret, "client", stranger.nonce, *join))) {
      stranger.connection.close();
      return;
    }
    std::string refusal;
    if (join->world_size != options_.ranks || join->rank >= options_.ranks)
      refusal = fmt::format("rank {} of {} tried to join a run of {} ranks", join->rank,
                            join->world_size, options_.ranks);
    else if (ranks_[join->rank].state != Rank::State::kAbsent)
      refusal = fmt::format("rank {} tried to join twice", join->rank);
    const Key answer = proof(address_.secret, "server", stranger.nonce, *join);
    stranger.connection.send(Welcome{answer, ::getpid(), machine_, options_.host_rank});
    stranger.connection.authenticate(session_key(address_.secret, join->proof, answer));
    if (!refusal.empty()) {
      stranger.connection.send(Stop{1, refusal});
      stranger.connection.close();
      suspect({Kind::kStart, join->rank, refusal, false, now_});
      return;
    }
    Rank& rank = ranks_[join->rank];
    rank.state = Rank::State::kRunning;
    rank.connection = std::move(stranger.connection);
    stranger.connection.close();
    rank.heard = now_;
    // A rank in this very process cannot be killed alone.
    rank.near = !machine_.empty() && join->machine == machine_;
    if (rank.near && join->pid > 1 && join->pid != ::getpid()) {
      rank.pid = join->pid;
      rank.process = open_process(join->pid);
    }
    if (joined_++ == 0) first_joined_ = now_;
    if (decided_ && join->rank != options_.host_rank) tell_stop(rank);
  }

  void hear(int number) {
    Rank& rank = ranks_[number];
    if (rank.connection.open()) {
      rank.connection.flush();
      bool alive = rank.connection.open() && rank.connection.receive();
      try {
        while (const std::optional<Message> message = rank.connection.next())
          take(number, *message);
      } catch (const Error&) {
        alive = false;
      }
      if (!alive) rank.connection.close();
    }
    if (rank.process.valid()) {
      pollfd ended{rank.process.get(), POLLIN, 0};
      if (::poll(&ended, 1, 0) == 1) {
        rank.process = Descriptor();
        rank.pid = 0;
        rank.connection.close();
      }
    }
    if (rank.state == Rank::State::kRunning && !rank.connection.open()) lose(number);
  }

  void take(int number, const Message& message) {
    Rank& rank = ranks_[number];
    rank.heard = now_;
    const auto keep = [&](const RankStatus& status) {
      check(number, status);
      rank.view.status = status;
      rank.reported = now_;
    };
    if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
      keep(heartbeat->status);
    } else if (const auto* finished = std::get_if<Finished>(&message)) {
      keep(finished->status);
      rank.view.finished = true;
      rank.state = Rank::State::kFinished;
    } else if (const auto* failed = std::get_if<Failed>(&message)) {
      keep(failed->status);
      rank.state = Rank::State::kLost;
      suspect({Kind::kFailed, number, failed->sentence, failed->of_communication, now_,
               failed->of_configuration});
    } else {
      raise<CommError>("a rank sent a message that only the monitor may send");
    }
  }

  /// Group members index the ranks of the world from here on.
  void check(int number, const RankStatus& status) const {
    const auto valid = [&](int rank) { return rank >= 0 && rank < options_.ranks; };
    for (const GroupStatus& group : status.groups) {
      bool good =
          !group.ranks.empty() && std::all_of(group.ranks.begin(), group.ranks.end(), valid);
      for (const OperationStatus& operation : group.operations)
        good = good && (!operation.is_transfer() || (valid(operation.from) && valid(operation.to)));
      if (!good) raise<CommError>("rank {} reported a group with ranks outside the world", number);
    }
  }

  void lose(int number) {
    Rank& rank = ranks_[number];
    if (rank.state == Rank::State::kLost) return;
    rank.state = Rank::State::kLost;
    suspect({Kind::kLost, number, "", false, now_});
  }

  /// The first reason counts, but for one that may be the consequence of another.
  void suspect(Suspicion suspicion) {
    if (decided_) return;
    if (suspicion_) {
      const bool weaker = suspicion_->of_communication || suspicion_->kind == Kind::kFinding ||
                          suspicion_->kind == Kind::kSilent;
      const bool stronger = suspicion.kind == Kind::kLost ||
                            (suspicion.kind == Kind::kFailed && !suspicion.of_communication);
      if (!weaker || !stronger) return;
      suspicion.since = suspicion_->since;
    }
    suspicion_ = std::move(suspicion);
    for (Rank& rank : ranks_)
      if (rank.state == Rank::State::kRunning) rank.connection.send(Ping{true, ""});
  }

  std::vector<RankView> views() const {
    std::vector<RankView> result;
    for (const Rank& rank : ranks_) result.push_back(rank.view);
    return result;
  }

  void watch() {
    if (since(last_ping_, now_) >= options_.heartbeat_s) {
      last_ping_ = now_;
      const std::string host =
          options_.host_rank < 0 ? "" : where_lost(views(), options_.host_rank);
      for (Rank& rank : ranks_)
        if (rank.state == Rank::State::kRunning) rank.connection.send(Ping{false, host});
    }
    if (suspicion_) {
      if (ready_to_decide()) conclude();
      return;
    }
    watch_silence();
    if (!suspicion_) watch_joining();
    if (!suspicion_ && since(last_diagnosis_, now_) >= options_.heartbeat_s / 4) {
      last_diagnosis_ = now_;
      if (const auto finding = diagnose(views(), options_.timeout_s))
        suspect({Kind::kFinding, finding->rank, finding->sentence, false, now_});
    }
  }

  void watch_silence() {
    for (int number = 0; number < options_.ranks; ++number) {
      const Rank& rank = ranks_[number];
      if (rank.state != Rank::State::kRunning) continue;
      const double silence = since(rank.heard, now_);
      if (silence < limits_.stopped_s) continue;
      const bool stopped = rank.pid > 0 && is_stopped(rank.pid);
      if (!stopped && silence < limits_.unknown_s) continue;
      suspect({Kind::kSilent, number,
               fmt::format("rank {} {} (no heartbeat for {:.1f} s)", number,
                           stopped ? "is stopped by a signal" : "does not answer", silence),
               false, now_});
      return;
    }
  }

  void watch_joining() {
    if (joined_ == 0 || joined_ == options_.ranks ||
        since(first_joined_, now_) < options_.join_timeout_s)
      return;
    std::vector<int> absent;
    for (int number = 0; number < options_.ranks; ++number)
      if (ranks_[number].state == Rank::State::kAbsent) absent.push_back(number);
    suspect({Kind::kStart, absent.front(),
             fmt::format("{} did not join within {:.0f} s after the first rank", rank_list(absent),
                         options_.join_timeout_s),
             false, now_});
  }

  bool ready_to_decide() const {
    const double waited = since(suspicion_->since, now_);
    if (waited > kGatherS) return true;
    if (waited < kGatherS / 5) return false; // what happens together arrives together
    if (options_.reports_exits && suspicion_->kind == Kind::kLost &&
        !ranks_[suspicion_->rank].exit_status)
      return false;
    return std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
      return rank.state != Rank::State::kRunning || rank.reported > suspicion_->since;
    });
  }

  void conclude() {
    const Suspicion suspicion = *std::exchange(suspicion_, std::nullopt);
    const std::vector<RankView> ranks = views();
    Verdict verdict{suspicion.kind, suspicion.rank, suspicion.sentence, ""};
    switch (suspicion.kind) {
    case Kind::kFinding: {
      const auto finding = diagnose(ranks, options_.timeout_s);
      if (!finding) return;
      verdict.rank = finding->rank;
      verdict.event = finding->sentence;
      break;
    }
    case Kind::kSilent:
      if (ranks_[suspicion.rank].heard > suspicion.since) return;
      verdict.where = where_lost(ranks, suspicion.rank);
      break;
    case Kind::kLost: {
      const std::optional<int> status = ranks_[suspicion.rank].exit_status;
      verdict.event = fmt::format("rank {} {}", suspicion.rank,
                                  status ? describe_exit(*status)
                                         : "died: its process ended without reporting an error");
      verdict.where = where_lost(ranks, suspicion.rank);
      verdict.near = ranks_[suspicion.rank].near;
      verdict.remedy = memory_kills_.text(status, verdict.near);
      break;
    }
    case Kind::kFailed:
      verdict.event =
          fmt::format("rank {} of {}: {}", suspicion.rank, options_.ranks, suspicion.sentence);
      if (suspicion.of_configuration) verdict.exit_code = 2;
      // The error of a library in a collective on which the ranks disagree.
      if (suspicion.of_communication)
        if (const auto finding = diagnose(ranks, options_.timeout_s))
          verdict = {Kind::kFinding, finding->rank, finding->sentence, ""};
      break;
    case Kind::kStart:
      break;
    }
    decide(verdict);
  }

  /// Whether this process was stopped for so long that the others end because of that: the first
  /// of them has told and left (Client). What is left is to end too.
  bool told_meanwhile() const {
    if (options_.host_rank < 0 || options_.ranks < 2 || now_ > absent_until_) return false;
    return ranks_[options_.host_rank == 0 ? 1 : 0].state == Rank::State::kLost;
  }

  void decide(const Verdict& verdict) {
    if (decided_) return;
    decided_ = now_;
    {
      const std::lock_guard lock(mutex_);
      verdict_ = verdict;
    }
    if (options_.on_verdict && !told_meanwhile()) options_.on_verdict(verdict);
    for (int number = 0; number < options_.ranks; ++number)
      if (number != options_.host_rank) tell_stop(ranks_[number]);
  }

  void tell_stop(Rank& rank) {
    rank.connection.send(Stop{verdict_->exit_code, verdict_->sentence()});
  }

  /// Waits for the ranks to end, and kills on this machine those that do not.
  void bring_to_end() {
    const double waited = since(*decided_, now_);
    bool left = false;
    for (int number = 0; number < options_.ranks; ++number) {
      Rank& rank = ranks_[number];
      if (number == options_.host_rank) continue;
      if (rank.pid > 0 && rank.process.valid() &&
          (waited > options_.grace_s || (waited > 0.1 && is_stopped(rank.pid))))
        signal_process(rank.process, SIGKILL);
      left = left || rank.connection.open() || rank.process.valid();
    }
    if (ended_ || (left && waited < options_.grace_s + 1)) return;
    ended_ = true;
    if (options_.on_end) options_.on_end(*verdict_);
  }

  void update_over() {
    const bool all = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return rank.state == Rank::State::kFinished;
    });
    if (!all && !ended_) return;
    const std::lock_guard lock(mutex_);
    over_ = true;
    over_changed_.notify_all();
  }

  const ServerOptions options_;
  const SilenceLimits limits_;
  Address address_;
  Descriptor listener_, wake_;

  // Of the loop's thread.
  std::deque<Stranger> strangers_;
  std::vector<Rank> ranks_;
  const std::string machine_;
  const MemoryKills memory_kills_;
  std::optional<Suspicion> suspicion_;
  std::optional<Clock::time_point> decided_;
  bool ended_ = false, closing_ = false;
  Clock::time_point now_, last_turn_, last_ping_, last_diagnosis_, first_joined_, absent_until_,
      accepts_again_;

  std::atomic<int> joined_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable over_changed_;
  std::deque<std::function<void()>> jobs_;
  std::optional<Verdict> verdict_;
  bool over_ = false;

  std::thread thread_;
};

Server::Server(ServerOptions options) : loop_(std::make_unique<Loop>(std::move(options))) {}
Server::~Server() = default;

Address Server::address() const {
  return loop_->address();
}
void Server::report_exit(int rank, int wait_status) {
  loop_->report_exit(rank, wait_status);
}
void Server::signal_processes(int number) {
  loop_->signal_processes(number);
}
void Server::send_signal(int number) {
  loop_->send_signal(number);
}
int Server::joined() const {
  return loop_->joined();
}
void Server::end_run(const Verdict& verdict) {
  loop_->end_run(verdict);
}
std::optional<Verdict> Server::verdict() const {
  return loop_->verdict();
}
void Server::wait_until_over() {
  loop_->wait_until_over();
}
bool Server::over() const {
  return loop_->over();
}

} // namespace pentatron::comm::control
