#include "pentatron/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/data/remove_padding.h"
#include "pentatron/data/shifted_fields.h"

namespace pentatron::data {

namespace {

using Clock = std::chrono::steady_clock;

int64_t batch_size_at(const LoaderOptions& options, int64_t consumed) {
  return options.global_batch_size_at ? options.global_batch_size_at(consumed)
                                      : options.global_batch_size;
}

void check_batch_size(const LoaderOptions& options, int64_t global) {
  const int64_t block = options.micro_batch_size * options.size;
  if (global < 1 || global % block != 0) {
    const int64_t near = std::max<int64_t>(1, (global + block / 2) / block) * block;
    raise<ConfigError>("train.global_batch_size={} is not a multiple of train.micro_batch_size={} "
                       "times data-parallel "
                       "size {}\n  try: train.global_batch_size={}",
                       global, options.micro_batch_size, options.size, near);
  }
}

StepData make_step(const Dataset& dataset, const LoaderOptions& options, int64_t consumed) {
  StepData step;
  step.first_sample = consumed;
  step.global_batch_size =
      batch_size_at(options, planted("ramp_by_own_samples") ? consumed / options.size : consumed);
  check_batch_size(options, step.global_batch_size);
  const std::optional<int64_t> size = dataset.size();
  const bool padded = options.pad_last_batch && size && consumed < *size;
  if (size && !padded && consumed + step.global_batch_size > *size) {
    raise<DataError>("the dataset has {} samples, but the step after sample {} needs {} more\n  "
                     "try: train.train_iters={}",
                     *size, consumed, step.global_batch_size, consumed / step.global_batch_size);
  }
  const int64_t block = options.micro_batch_size * options.size;
  std::vector<int64_t> ids(static_cast<size_t>(options.micro_batch_size));
  for (int64_t begin = 0; begin < step.global_batch_size; begin += block) {
    const int64_t rank = planted("same_samples_on_every_rank") ? 0 : options.rank;
    std::iota(ids.begin(), ids.end(), consumed + begin + rank * options.micro_batch_size);
    if (padded)
      std::replace_if(
          ids.begin(), ids.end(), [&](int64_t id) { return id >= *size; }, -1);
    Batch& batch = step.microbatches.emplace_back(make_batch(dataset, ids));
    add_shifted_fields(batch, options.shifted);
    if (options.remove_padding)
      remove_padding(batch, options.token_multiple, options.sample_multiple);
    for (const auto& [field, n] : batch.num_targets) step.num_targets[field] += n;
    for (const auto& [name, shape] : batch.streams) {
      StreamTotals& totals = step.totals[name];
      totals.tokens += shape.tokens();
      totals.real_tokens += shape.real_tokens;
      totals.squared_lengths += shape.squared_lengths;
      totals.lengths += shape.lengths;
    }
    if (options.size > 1 && planted("lost_microbatches")) break;
  }
  return step;
}

} // namespace

struct Loader::State {
  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  std::thread thread;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<StepData> ready;
  std::exception_ptr error; // of the step after the ready ones
  bool stop = false;

  int64_t consumed = 0;     // handed out
  int64_t produced = 0;     // made; only the thread's while it runs
  Clock::duration waited{}; // of the consumer only
  Clock::time_point since = Clock::now();
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : state_(std::make_unique<State>()) {
  if (options.micro_batch_size < 1)
    raise<ConfigError>("train.micro_batch_size={} is not positive", options.micro_batch_size);
  PT_DCHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size);
  PT_DCHECK(options.consumed_samples >= 0);
  check_batch_size(options, batch_size_at(options, options.consumed_samples));
  state_->dataset = std::move(dataset);
  state_->consumed = state_->produced = options.consumed_samples;
  state_->options = std::move(options);
  state_->thread = std::thread(&Loader::produce, std::ref(*state_));
}

Loader::~Loader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void Loader::produce(State& state) {
  const auto room = static_cast<size_t>(std::max<int64_t>(state.options.prefetch, 1));
  while (true) {
    {
      std::unique_lock lock(state.mutex);
      state.changed.wait(lock, [&] { return state.stop || state.ready.size() < room; });
      if (state.stop) return;
    }
    try {
      StepData step = make_step(*state.dataset, state.options, state.produced);
      state.produced += step.global_batch_size;
      const std::lock_guard lock(state.mutex);
      state.ready.push_back(std::move(step));
    } catch (...) {
      const std::lock_guard lock(state.mutex);
      state.error = std::current_exception();
    }
    state.changed.notify_all();
    if (state.error) return; // written by this thread alone
  }
}

StepData Loader::next() {
  StepData step;
  {
    std::unique_lock lock(state_->mutex);
    if (state_->ready.empty() && !state_->error) {
      const Clock::time_point start = Clock::now();
      state_->changed.wait(lock, [&] { return !state_->ready.empty() || state_->error; });
      state_->waited += Clock::now() - start;
    }
    if (state_->ready.empty()) std::rethrow_exception(state_->error);
    step = std::move(state_->ready.front());
    state_->ready.pop_front();
  }
  state_->consumed += step.global_batch_size;
  state_->changed.notify_all();
  return step;
}

int64_t Loader::consumed_samples() const {
  return state_->consumed;
}

double Loader::wait_share() {
  const Clock::time_point now = Clock::now();
  const double total = std::chrono::duration<double>(now - state_->since).count();
  const double waited = std::chrono::duration<double>(state_->waited).count();
  state_->since = now;
  state_->waited = {};
  return total > 0 ? std::clamp(waited / total, 0.0, 1.0) : 0.0;
}

} // namespace pentatron::data
