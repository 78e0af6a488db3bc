#include "pentatron/trainer/stop.h"

#include <ATen/ATen.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <unistd.h>

#include "pentatron/base/progress.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/supervisor.h"
#include "pentatron/trainer/train.h"

namespace pentatron::trainer {

namespace {

std::atomic<int> signal_received{0};
/// When a signal came that ends the program if it comes again; 0: none came.
std::atomic<int64_t> asked_to_end_ms{0};
std::atomic<const char*> first_answer{nullptr};
std::atomic<bool> answers{false}; ///< this process, of those of a run

int64_t now_ms() { // safe in a signal handler
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000 + 1;
}

extern "C" void on_signal(int number) {
  signal_received = number;
  // A terminal that is closed may send several SIGHUP, and other signals after it.
  const int error = errno;
  log::clear_progress_in_handler();
  int64_t asked = 0;
  if (number != SIGHUP && !asked_to_end_ms.compare_exchange_strong(asked, now_ms()) &&
      now_ms() - asked >= comm::kOneRequestMs) {
    constexpr char kText[] = "stopped without saving\n";
    if (answers) [[maybe_unused]]
      const ssize_t n = ::write(STDERR_FILENO, kText, sizeof kText - 1);
    std::_Exit(128 + number);
  }
  if (const char* const text = first_answer.exchange(nullptr)) [[maybe_unused]]
    const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
  errno = error;
}

const char* signal_name(int number) {
  return number == SIGINT    ? "SIGINT"
         : number == SIGTERM ? "SIGTERM"
         : number == SIGHUP  ? "SIGHUP"
                             : "an unknown signal";
}

} // namespace

Between any_rank(const Between& here, const comm::Group& world) {
  const at::Tensor own = at::empty({4}, at::kLong);
  int64_t* const values = own.mutable_data_ptr<int64_t>();
  values[0] = here.signal;
  values[1] = here.out_of_time;
  values[2] = here.saving;
  values[3] = here.contended;
  const at::Tensor all = comm::all_reduce(own, comm::ReduceOp::kMax, world);
  const int64_t* const most = all.const_data_ptr<int64_t>();
  return {static_cast<int>(most[0]), most[1] != 0, most[2] != 0, most[3]};
}

const char* stopping_text(bool saves) {
  // On a terminal the last line shows ^C, and maybe the progress bar.
  constexpr size_t kClear = 4;
  const char* const text =
      saves ? "\r\033[Kstopping; an iteration that has begun is finished and saved first\n"
              "press Ctrl-C or send SIGTERM again to stop now without saving\n"
            : "\r\033[Kstopping; an iteration that has begun is finished first, and not saved "
              "because checkpoint.save is empty\n"
              "press Ctrl-C or send SIGTERM again to stop now\n";
  return ::isatty(STDERR_FILENO) == 1 ? text : text + kClear;
}

void install_signal_handlers(const char* answer) {
  struct sigaction action = {}, before = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  signal_received = 0;
  asked_to_end_ms = 0;
  first_answer = answer;
  answers = answer != nullptr;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

int signal_that_came() {
  return signal_received.load();
}

std::string exit_reason(const TrainReport& report) {
  if (report.unsaved) return "error: the run has ended, but " + report.unsaved->text;
  switch (report.reason) {
  case StopReason::kSignal:
    return std::string("signal ") + signal_name(report.signal);
  case StopReason::kDuration:
    return "exit_duration";
  case StopReason::kExitInterval:
    return "exit_interval";
  case StopReason::kFinished:
    break;
  }
  return "finished";
}

} // namespace pentatron::trainer
