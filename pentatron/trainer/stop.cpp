#include "pentatron/trainer/stop.h"

#include <ATen/ATen.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "pentatron/comm/collectives.h"
#include "pentatron/trainer/train.h"

namespace pentatron::trainer {

namespace {

std::atomic<int> signal_received{0};

extern "C" void on_signal(int number) {
  if (signal_received.exchange(number) != 0) std::_Exit(128 + number);
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

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  signal_received = 0;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool signal_came() {
  return signal_received.load() != 0;
}

} // namespace pentatron::trainer
