#include "pentatron/comm/supervisor.h"

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/comm/control/memory_kill.h"
#include "pentatron/comm/control/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace pentatron::comm {

namespace {

using Clock = std::chrono::steady_clock;
using control::Descriptor;

constexpr char kControl[] = "PENTATRON_CONTROL";
constexpr char kSecret[] = "PENTATRON_CONTROL_SECRET";
constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP};

double since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

// Signals that have come and are not yet forwarded, by index in kForwarded.
std::array<volatile std::sig_atomic_t, kForwarded.size()> g_arrived;
std::atomic<const char*> g_acknowledgement{nullptr}; // for the first that asks to end

bool asks_to_end(int number) {
  return number == SIGINT || number == SIGTERM || number == SIGHUP;
}

/// As nohup and shells without job control do.
bool is_ignored(int number) {
  struct sigaction now {};
  return ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN &&
         (number == SIGHUP || number == SIGTSTP);
}

void note_signal(int number) {
  const int error = errno;
  for (size_t i = 0; i < kForwarded.size(); ++i)
    if (kForwarded[i] == number) g_arrived[i] = g_arrived[i] + 1;
  if (const char* const text = asks_to_end(number) ? g_acknowledgement.exchange(nullptr) : nullptr)
      [[maybe_unused]]
    const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
  errno = error;
}

/// Notes the forwarded signals for as long as it lives.
class SignalNotes {
 public:
  explicit SignalNotes(const char* acknowledgement) {
    g_acknowledgement = acknowledgement;
    struct sigaction action {};
    action.sa_handler = note_signal;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < kForwarded.size(); ++i) {
      g_arrived[i] = 0;
      ::sigaction(kForwarded[i], is_ignored(kForwarded[i]) ? nullptr : &action, &before_[i]);
    }
  }
  ~SignalNotes() {
    for (size_t i = 0; i < kForwarded.size(); ++i) ::sigaction(kForwarded[i], &before_[i], nullptr);
  }
  SignalNotes(const SignalNotes&) = delete;
  SignalNotes& operator=(const SignalNotes&) = delete;

  /// The next signal that has come, or 0.
  int take() {
    for (size_t i = 0; i < kForwarded.size(); ++i) {
      if (g_arrived[i] == seen_[i]) continue;
      ++seen_[i];
      return kForwarded[i];
    }
    return 0;
  }

 private:
  std::array<struct sigaction, kForwarded.size()> before_;
  std::array<std::sig_atomic_t, kForwarded.size()> seen_{};
};

/// A program with its arguments and environment, in the form that exec takes.
struct Command {
  std::vector<std::string> arguments; ///< the first is the program's path
  Environment environment;
  int death_signal = SIGTERM; ///< when this process dies
};

/// Only calls that are safe between fork and exec of a process with threads.
[[noreturn]] void become(char* const* arguments, char* const* environment, int death_signal,
                         pid_t parent, int report) {
  ::setpgid(0, 0); // the terminal's signals are for the supervisor, which forwards them
  ::prctl(PR_SET_PDEATHSIG, death_signal);
  if (::getppid() != parent) ::_exit(1);
  for (const int number : kForwarded)
    if (!is_ignored(number)) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::execve(arguments[0], arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(127);
}

/// A child in a process group of its own, which is killed with this object.
class Child {
 public:
  explicit Child(const Command& command) {
    std::vector<std::string> environment;
    for (const auto& [name, value] : command.environment) {
      environment.push_back(name);
      environment.back() += '=';
      environment.back() += value;
    }
    const auto pointers = [](const std::vector<std::string>& texts) {
      std::vector<char*> result;
      for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
      result.push_back(nullptr);
      return result;
    };
    const std::vector<char*> argv = pointers(command.arguments), envp = pointers(environment);
    std::array<int, 2> ends;
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      require_descriptors(errno);
      raise<CommError>("cannot create a pipe to a new process ({})", std::strerror(errno));
    }
    Descriptor reading(ends[0]), writing(ends[1]);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) become(argv.data(), envp.data(), command.death_signal, parent, writing.get());
    if (pid_ < 0) raise<CommError>("cannot start the ranks ({})", std::strerror(errno));
    ::setpgid(pid_, pid_);
    writing = Descriptor();
    int error = 0;
    ssize_t count;
    do count = ::read(reading.get(), &error, sizeof error);
    while (count < 0 && errno == EINTR);
    if (count == sizeof error) {
      wait();
      raise<ConfigError>("cannot start {} ({})", command.arguments[0], std::strerror(error));
    }
  }
  ~Child() {
    if (status_) return;
    signal(SIGKILL);
    wait();
  }
  Child(Child&& other) noexcept : pid_(other.pid_), status_(other.status_) { other.status_ = 0; }
  Child& operator=(Child&&) = delete;

  /// To its whole process group.
  void signal(int number) {
    if (!status_) ::kill(-pid_, number);
  }
  /// Its status if it has ended.
  std::optional<int> poll() {
    int status = 0;
    if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    return status_;
  }

 private:
  void wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    status_ = status;
  }

  pid_t pid_ = -1;
  std::optional<int> status_;
};

std::string this_program() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) raise<ConfigError>("cannot find the file of this program ({})", error.message());
  return path.string();
}

std::string find_mpirun(const Environment& environment) {
  const auto path = environment.find("PATH");
  if (path != environment.end())
    for (const std::string_view folder : split(path->second, ':')) {
      const std::string file = std::string(folder) + "/mpirun";
      if (folder.starts_with('/') && ::access(file.c_str(), X_OK) == 0) return file;
    }
  raise<ConfigError>(
      "the mpi backend needs mpirun, which is not in PATH\n  try: apt-get install openmpi-bin");
}

/// Without what another launcher has set, so that the ranks see one launcher only.
Environment clean_environment(const control::Address& address) {
  Environment environment = process_environment();
  std::erase_if(environment, [](const auto& entry) {
    const std::string& name = entry.first;
    const bool of_launcher = name.starts_with("OMPI_") || name.starts_with("PMIX_") ||
                             name.starts_with("SLURM_") || name.starts_with("TORCHELASTIC_");
    constexpr std::array<std::string_view, 6> kTorchrun = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    return (of_launcher && !name.starts_with("OMPI_MCA_")) ||
           std::find(kTorchrun.begin(), kTorchrun.end(), name) != kTorchrun.end();
  });
  environment[kControl] = address.endpoint();
  environment[kSecret] = control::to_hex(address.secret);
  return environment;
}

std::vector<Command> commands(const SupervisorOptions& options, const control::Address& address) {
  const Environment environment = clean_environment(address);
  std::vector<std::string> rank = {options.program.empty() ? this_program() : options.program};
  if (::access(rank[0].c_str(), X_OK) != 0)
    raise<ConfigError>("cannot start {} ({})", rank[0], std::strerror(errno));
  rank.insert(rank.end(), options.arguments.begin(), options.arguments.end());
  if (options.start == SupervisorOptions::Start::kMpirun) {
    // Threads are the program's to place; mpirun's banners would bury the monitor's sentence.
    std::vector<std::string> mpirun = {
        find_mpirun(environment),     "--quiet", "--oversubscribe", "--bind-to", "none", "-n",
        std::to_string(options.ranks)};
    if (::geteuid() == 0) mpirun.insert(mpirun.begin() + 1, "--allow-run-as-root");
    mpirun.insert(mpirun.end(), rank.begin(), rank.end());
    return {{std::move(mpirun), environment, SIGTERM}};
  }
  int port = 0;
  control::listen(false, port); // free, now that it is closed again
  std::vector<Command> result;
  for (int i = 0; i < options.ranks; ++i) {
    Command command{rank, environment, SIGKILL};
    const std::string number = std::to_string(i), size = std::to_string(options.ranks);
    for (const char* name : {"RANK", "LOCAL_RANK"}) command.environment[name] = number;
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) command.environment[name] = size;
    command.environment["MASTER_ADDR"] = "127.0.0.1";
    command.environment["MASTER_PORT"] = std::to_string(port);
    result.push_back(std::move(command));
  }
  return result;
}

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

class Supervision {
 public:
  explicit Supervision(const SupervisorOptions& options)
      : options_(options), signals_(options.acknowledgement),
        server_({.ranks = options.ranks,
                 .timeout_s = options.dist.timeout_s,
                 .heartbeat_s = options.dist.heartbeat_s,
                 .join_timeout_s = options.join_timeout_s,
                 .grace_s = options.grace_s,
                 .reports_exits = direct()}) {
    for (const Command& command : commands(options, server_.address())) {
      children_.emplace_back(command);
      statuses_.emplace_back();
    }
  }

  int run() {
    while (!reap()) {
      forward_signals();
      end_in_time();
      ::poll(nullptr, 0, 20); // a signal interrupts it
    }
    if (const auto verdict = final_verdict()) {
      if (verdict->exit_code == 2) throw ConfigError(sentence(*verdict));
      throw CommError(sentence(*verdict));
    }
    int result = 0;
    for (const auto& status : statuses_)
      if (result == 0) result = exit_code(*status);
    if (result != 0 && server_.joined() == 0 && !was_stopped_)
      raise<CommError>("the ranks ended with exit code {} before any of them joined the run{}",
                       result, result == 128 + SIGKILL ? memory_kills_.text(SIGKILL, true) : "");
    return result;
  }

 private:
  bool direct() const { return options_.start == SupervisorOptions::Start::kProcesses; }

  /// Whether all children have ended.
  bool reap() {
    bool all = true;
    for (size_t i = 0; i < children_.size(); ++i) {
      if (statuses_[i]) continue;
      statuses_[i] = children_[i].poll();
      if (!statuses_[i])
        all = false;
      else if (direct() && !was_stopped_)
        server_.report_exit(static_cast<int>(i), *statuses_[i]);
    }
    return all;
  }

  void forward_signals() {
    while (const int number = signals_.take()) {
      if (number == SIGTSTP) {
        suspend();
        continue;
      }
      const bool ends = asks_to_end(number);
      // A terminal that is closed may send several SIGHUP, and other signals after it.
      const bool again = ends && number != SIGHUP && asked_to_end_.has_value();
      if (again && 1000 * since(*asked_to_end_) < kOneRequestMs) continue;
      if (ends && number != SIGHUP && !again) asked_to_end_ = Clock::now();
      server_.send_signal(number);
      if (again || (ends && server_.joined() == 0)) {
        was_stopped_ = true;
        for (Child& child : children_) child.signal(again ? SIGKILL : number);
        if (again)
          server_.end_run({control::Verdict::Kind::kFailed, -1,
                           "the run was ended by a second signal", "", 128 + number});
      }
    }
  }

  /// Ctrl-Z: stops the ranks and this process, until that is continued (fg, bg).
  void suspend() {
    for (Child& child : children_) child.signal(SIGSTOP);
    server_.signal_processes(SIGSTOP); // those that mpirun has put into groups of their own
    if (::isatty(STDERR_FILENO) == 1)  // where a rank may have drawn a progress line
      if (::write(STDERR_FILENO, "\r\033[K", 4) < 0) errno = 0;
    ::raise(SIGSTOP);
    server_.signal_processes(SIGCONT);
    for (Child& child : children_) child.signal(SIGCONT);
  }

  void end_in_time() {
    if (!server_.verdict()) return;
    if (!verdict_seen_) verdict_seen_ = Clock::now();
    const double waited = since(*verdict_seen_);
    if (waited < options_.grace_s) return;
    for (Child& child : children_)
      child.signal(direct() || waited > options_.grace_s + 2 ? SIGKILL : SIGTERM);
  }

  /// The monitor may be gathering reports on ranks whose processes have ended already.
  std::optional<control::Verdict> final_verdict() {
    const bool failed = std::any_of(statuses_.begin(), statuses_.end(),
                                    [](const auto& status) { return *status != 0; });
    const auto ended = Clock::now();
    while (failed && !server_.over() && !was_stopped_ && since(ended) < 1.5)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return server_.verdict();
  }

  /// mpirun's exit code tells which signal has killed the first rank that died.
  std::string sentence(const control::Verdict& verdict) const {
    control::Verdict result = verdict;
    const int code = exit_code(*statuses_[0]);
    if (!direct() && verdict.kind == control::Verdict::Kind::kLost) {
      if (code > 1)
        result.remedy = memory_kills_.text(code > 128 ? code - 128 : code << 8, verdict.near);
      if (code > 128)
        result.event = fmt::format("rank {} {}", verdict.rank, control::describe_exit(code - 128));
      else if (code > 1)
        result.event = fmt::format("rank {} {}", verdict.rank, control::describe_exit(code << 8));
    }
    return result.sentence();
  }

  const SupervisorOptions options_;
  SignalNotes signals_;
  const control::MemoryKills memory_kills_;
  control::Server server_;
  std::vector<Child> children_;
  std::vector<std::optional<int>> statuses_; ///< of waitpid, by child
  std::optional<Clock::time_point> verdict_seen_;
  std::optional<Clock::time_point> asked_to_end_; ///< the first time
  bool was_stopped_ = false;                      ///< by signals before the ranks had joined
};

} // namespace

int supervise(const SupervisorOptions& options) {
  if (options.ranks < 1)
    raise<ConfigError>("{} ranks are too few: at least 1 is needed", options.ranks);
  return Supervision(options).run();
}

std::optional<control::Address> supervisor_address(const Environment& environment) {
  const auto endpoint = environment.find(kControl), secret = environment.find(kSecret);
  if (endpoint == environment.end() && secret == environment.end()) return std::nullopt;
  if (endpoint == environment.end() || secret == environment.end())
    raise<ConfigError>("{} and {} must be set together\n  try: unset both", kControl, kSecret);
  return control::make_address(endpoint->second, secret->second);
}

} // namespace pentatron::comm
