#include "pentatron/trainer/stop.h"

#include <ATen/ATen.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "pentatron/comm/collectives.h"
#include "pentatron/trainer/train.h"

namespace pentatron::trainer {

namespace {

std::atomic<int> signal_received{0};
std::atomic<bool> asked_to_end{false}; ///< by a signal that ends the program if it comes again
std::atomic<const char*> first_answer{nullptr};

extern "C" void on_signal(int number) {
  signal_received = number;
  // A terminal that is closed may send several SIGHUP, and other signals after it.
  if (number != SIGHUP && asked_to_end.exchange(true)) std::_Exit(128 + number);
  const int error = errno;
  if (const char* const text = first_answer.exchange(nullptr)) [[maybe_unused]]
    const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
  errno = error;
}

} // namespace

Between any_rank(const Between& here, const comm::Group& world) {
  const at::Tensor own = at::empty({3}, at::kLong);
  int64_t* const values = own.mutable_data_ptr<int64_t>();
  values[0] = here.signal;
  values[1] = here.out_of_time;
  values[2] = here.saving;
  const at::Tensor all = comm::all_reduce(own, comm::ReduceOp::kMax, world);
  const auto is = [&](int64_t i) { return all[i].item<int64_t>() != 0; };
  return {is(0), is(1), is(2)};
}

const char* stopping_text(bool saves) {
  // On a terminal the last line is not at its end: it shows ^C, or the progress bar.
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const char* const text =
      saves
          ? "\nstopping: this iteration is finished and saved first; Ctrl-C or SIGTERM again ends "
            "the run at once, without saving\n"
          : "\nstopping: this iteration is finished first, and nothing is saved without "
            "checkpoint.save; Ctrl-C or SIGTERM again ends the run at once\n";
  return terminal ? text : text + 1;
}

void install_signal_handlers(const char* answer) {
  struct sigaction action = {}, before = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  signal_received = 0;
  asked_to_end = false;
  first_answer = answer;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

bool signal_came() {
  return signal_received.load() != 0;
}

} // namespace pentatron::trainer
