#include "pentatron/comm/control/client.h"

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/comm/control/diagnose.h"
#include "pentatron/comm/control/process.h"
#include "pentatron/comm/control/server.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <future>
#include <mutex>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

namespace pentatron::comm::control {

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

/// Writes without locks or allocation of others: the process may be in any state.
void print_error(const std::string& sentence) {
  const std::string line = "error: " + sentence + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::atomic<int> g_terminated = -1; ///< an eventfd that the handler of SIGTERM writes to

void note_sigterm(int) {
  const int before = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(g_terminated, &one, sizeof one);
  errno = before;
}

/// The next message, waited for.
Message await(Connection& connection, Clock::time_point deadline) {
  while (true) {
    if (std::optional<Message> message = connection.next()) return std::move(*message);
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{connection.fd(), POLLIN, 0};
    const int ready = left > 0 ? ::poll(&wait, 1, static_cast<int>(left)) : 0;
    if (ready == 0) raise<CommError>("the control channel does not answer");
    if (!connection.receive()) {
      if (std::optional<Message> message = connection.next()) return std::move(*message);
      raise<CommError>(
          "the control channel rejected this rank\n  try: the job secret of the monitor");
    }
  }
}

} // namespace

class Client::Loop {
 public:
  Loop(ClientOptions options, std::shared_ptr<OperationLog> log)
      : options_(std::move(options)), log_(std::move(log)),
        limits_(silence_limits(options_.heartbeat_s, options_.timeout_s)) {
    join();
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.valid()) {
      require_descriptors(errno);
      raise<CommError>("the control channel cannot start ({})", std::strerror(errno));
    }
    if (!options_.on_stop) handle_sigterm();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Loop() {
    finish();
    thread_.join();
    if (!terminated_.valid()) return;
    struct sigaction now {};
    if (::sigaction(SIGTERM, nullptr, &now) == 0 && now.sa_handler == note_sigterm)
      ::signal(SIGTERM, SIG_DFL);
    g_terminated = -1;
  }

  void finish() {
    std::unique_lock lock(mutex_);
    if (last_word_) return;
    say(lock, Finished{log_->status()});
  }

  void fail(const Failure& failure) {
    std::unique_lock lock(mutex_);
    if (last_word_) return;
    failed_ = true;
    say(lock, Failed{.sentence = failure.sentence,
                     .of_communication = failure.kind == FailureKind::kComm,
                     .of_configuration = failure.kind == FailureKind::kConfig,
                     .status = log_->status()});
    ended_changed_.wait_for(lock, std::chrono::seconds(5), [this] { return ended_; });
  }

 private:
  /// mpirun ends the other ranks with SIGTERM when one has died. Without a handler of the program,
  /// they would die before anybody could tell which was the first.
  void handle_sigterm() {
    struct sigaction now {};
    if (::sigaction(SIGTERM, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
    terminated_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!terminated_.valid()) return;
    g_terminated = terminated_.get();
    ::signal(SIGTERM, note_sigterm);
  }

  /// Tells the monitor of a SIGTERM, and ends the process when that has had time to decide.
  void end_if_terminated() {
    uint64_t count = 0;
    if (terminated_.valid() && ::read(terminated_.get(), &count, sizeof count) == sizeof count) {
      terminated_at_ = Clock::now();
      const std::lock_guard lock(mutex_);
      failed_ = true;
      if (!last_word_)
        last_word_ = Failed{.sentence = "it was ended by signal 15 (SIGTERM)",
                            .of_communication = true,
                            .status = log_->status()};
    }
    if (terminated_at_ && since(*terminated_at_) > 1) ::_exit(128 + SIGTERM);
  }

  /// Tells the monitor of the first error of a group's device, whatever the program's threads do.
  void tell_device_error() {
    const std::string error = log_->device_error();
    const std::lock_guard lock(mutex_);
    if (error.empty() || last_word_) return;
    failed_ = true;
    last_word_ = Failed{.sentence = error, .of_communication = true, .status = log_->status()};
  }

  /// Ends what is under way on the GPU, so that threads that wait for it go on. NCCL may block in
  /// that: no longer than a second is given to it.
  void abort_devices() {
    auto aborted = std::make_shared<std::promise<void>>();
    std::thread([log = log_, aborted] {
      log->abort_devices();
      aborted->set_value();
    }).detach();
    aborted->get_future().wait_for(std::chrono::seconds(1));
  }

  void join() {
    const auto deadline = Clock::now() + std::chrono::milliseconds(
                                             static_cast<int64_t>(options_.join_timeout_s * 1000));
    connection_ =
        Connection(connect(options_.address, options_.join_timeout_s), Connection::Side::kClient);
    const Message first = await(connection_, deadline);
    const Hello* hello = std::get_if<Hello>(&first);
    if (!hello) raise<CommError>("{} is not a control channel", options_.address.endpoint());
    Join join{options_.rank, options_.world_size, ::getpid(), machine_identity(), random_key(), {}};
    const Key& secret = options_.address.secret;
    join.proof = proof(secret, "client", hello->nonce, join);
    connection_.send(join);
    const Message second = await(connection_, deadline);
    const Welcome* welcome = std::get_if<Welcome>(&second);
    if (!welcome || !equal_keys(welcome->proof, proof(secret, "server", hello->nonce, join)))
      raise<CommError>("the control channel at {} does not know the job secret",
                       options_.address.endpoint());
    connection_.authenticate(session_key(secret, join.proof, welcome->proof));
    host_rank_ = welcome->host_rank;
    if (!welcome->machine.empty() && welcome->machine == join.machine) monitor_pid_ = welcome->pid;
  }

  /// Hands the last message to the loop and waits until it is written.
  void say(std::unique_lock<std::mutex>& lock, Message message) {
    last_word_ = std::move(message);
    wake();
    said_changed_.wait_for(lock, std::chrono::seconds(5), [this] { return said_ || ended_; });
  }

  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void run() {
    pthread_setname_np(pthread_self(), "control");
    heard_ = last_turn_ = Clock::now();
    auto last_beat = Clock::time_point();
    while (true) {
      if (since(last_beat) >= options_.heartbeat_s) {
        last_beat = Clock::now();
        connection_.send(Heartbeat{log_->status()});
        tell_device_error();
      }
      const double next_beat = std::max(0.001, options_.heartbeat_s - since(last_beat));
      const double pause = terminated_at_ ? std::min(0.1, next_beat) : next_beat;
      std::array<pollfd, 3> polled = {
          pollfd{terminated_.get(), POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0},
          pollfd{connection_.fd(),
                 static_cast<short>(connection_.wants_to_write() ? POLLIN | POLLOUT : POLLIN), 0}};
      ::poll(polled.data(), polled.size(), static_cast<int>(pause * 1000) + 1);
      // A process that was itself stopped has heard nothing meanwhile.
      if (const double gap = since(last_turn_); gap > options_.heartbeat_s + 2) {
        heard_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap));
        log_->excuse(gap);
      }
      last_turn_ = Clock::now();
      connection_.flush();
      end_if_terminated();
      if (say_last_word()) return;
      if (!listen_to_monitor()) return;
    }
  }

  /// True when this rank has finished and its thread may end.
  bool say_last_word() {
    const std::lock_guard lock(mutex_);
    if (!last_word_) return false;
    if (!said_) connection_.send(*last_word_);
    said_ = !connection_.wants_to_write();
    if (said_) said_changed_.notify_all();
    return said_ && !failed_;
  }

  /// False when the run is over for this rank.
  bool listen_to_monitor() {
    bool alive = connection_.open() && connection_.receive();
    try {
      while (const std::optional<Message> message = connection_.next()) {
        heard_ = Clock::now();
        if (const auto* stop = std::get_if<Stop>(&*message)) {
          end(stop->exit_code, stop->sentence, false);
          return false;
        }
        if (const auto* ping = std::get_if<Ping>(&*message)) {
          if (!ping->host.empty()) host_ = ping->host;
          if (ping->status_wanted) connection_.send(Heartbeat{log_->status()});
        } else if (const auto* signal = std::get_if<Signal>(&*message)) {
          if (signal->number == SIGINT || signal->number == SIGTERM || signal->number == SIGHUP ||
              signal->number == SIGUSR1 || signal->number == SIGUSR2)
            ::kill(::getpid(), signal->number);
        }
      }
    } catch (const Error&) {
      alive = false;
    }
    if (!alive) {
      end(1, monitor_sentence("died: its process ended without reporting an error", "has ended"),
          true);
      return false;
    }
    const double silence = since(heard_);
    if (silence < limits_.stopped_s) return true;
    const bool stopped = host_rank_ >= 0 && monitor_pid_ > 0 && is_stopped(monitor_pid_);
    if (!stopped && silence < limits_.unknown_s) return true;
    end(1,
        monitor_sentence(fmt::format("{} (no heartbeat for {:.1f} s)",
                                     stopped ? "is stopped by a signal" : "does not answer",
                                     silence),
                         "does not answer"),
        true);
    return false;
  }

  std::string monitor_sentence(const std::string& rank_event, const char* supervisor_event) const {
    if (host_rank_ >= 0)
      return fmt::format("rank {} {}{}", host_rank_, rank_event, where_host_was());
    return fmt::format("the process that supervises the ranks {}", supervisor_event);
  }

  /// From what this rank waits for with the host, which it will reach in a moment, else from what
  /// the host last told.
  std::string where_host_was() const {
    std::vector<RankView> views(std::max(options_.world_size, host_rank_ + 1));
    for (int i = 0; i < 20; ++i) {
      views[options_.rank].status = log_->status();
      const std::string where = where_lost(views, host_rank_);
      if (where.starts_with(" at ")) return where;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return host_;
  }

  void end(int exit_code, const std::string& sentence, bool monitor_lost) {
    bool concerned = true; // the monitor need not wait for who has finished
    {
      const std::lock_guard lock(mutex_);
      concerned = !monitor_lost || !last_word_ || failed_;
    }
    if (concerned) abort_devices();
    if (!concerned) {
    } else if (options_.on_stop) {
      options_.on_stop(exit_code, sentence, monitor_lost);
    } else {
      const int first_survivor = host_rank_ == 0 ? 1 : 0;
      if (monitor_lost && options_.rank == first_survivor) print_error(sentence);
      ::_exit(exit_code);
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    said_changed_.notify_all();
    ended_changed_.notify_all();
  }

  const ClientOptions options_;
  const std::shared_ptr<OperationLog> log_;
  const SilenceLimits limits_;
  int host_rank_ = -1;
  int64_t monitor_pid_ = 0;
  Descriptor wake_, terminated_;

  // Of the loop's thread.
  Connection connection_;
  std::string host_;
  Clock::time_point heard_, last_turn_;
  std::optional<Clock::time_point> terminated_at_;

  std::mutex mutex_;
  std::condition_variable said_changed_, ended_changed_;
  std::optional<Message> last_word_;
  bool said_ = false, failed_ = false, ended_ = false;

  std::thread thread_;
};

Client::Client(ClientOptions options, std::shared_ptr<OperationLog> log)
    : loop_(std::make_unique<Loop>(std::move(options), std::move(log))) {}
Client::~Client() = default;

void Client::finish() {
  loop_->finish();
}
void Client::fail(const Failure& failure) {
  loop_->fail(failure);
}

} // namespace pentatron::comm::control
