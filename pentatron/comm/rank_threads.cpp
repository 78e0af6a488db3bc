#include "pentatron/comm/rank_threads.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend/in_process/in_process_backend.h"
#include "pentatron/comm/backend/in_process/world.h"
#include "pentatron/comm/control/monitored_backend.h"
#include "pentatron/comm/control/thread_watch.h"
#include "pentatron/comm/failure.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <numeric>
#include <optional>
#include <pthread.h>
#include <thread>
#include <unistd.h>

namespace pentatron::comm {

namespace {

thread_local int t_rank = 0;

void end_process(const std::string& sentence) {
  const std::string line = "error: " + sentence + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(1);
}

/// What the threads of a run are watched by, if they are.
class Watch {
 public:
  Watch(int world_size, const RankThreadsOptions& options, std::shared_ptr<in_process::World> world)
      : world_size_(world_size), world_(std::move(world)) {
    if (options.timeout_s <= 0) return;
    for (int rank = 0; rank < world_size; ++rank)
      logs_.push_back(std::make_shared<control::OperationLog>());
    watch_.emplace(
        control::ThreadWatch::Options{
            .timeout_s = options.timeout_s,
            .heartbeat_s = options.heartbeat_s,
            .grace_s = options.grace_s,
            .on_finding = [this](const control::Finding& finding) { end(finding); },
            .on_stuck = options.on_stuck ? options.on_stuck : end_process},
        logs_);
  }

  std::shared_ptr<Backend> monitored(std::shared_ptr<Backend> backend, int rank) const {
    return watch_ ? control::monitored(std::move(backend), logs_[rank]) : backend;
  }
  void finished(int rank) {
    if (watch_) watch_->finished(rank);
  }
  void failed(int rank, const std::string& sentence) {
    if (watch_) watch_->failed(fmt::format("rank {} of {}: {}", rank, world_size_, sentence));
  }
  /// Why the watch has ended the run, or null. All threads have been joined.
  const std::exception_ptr& reason() {
    watch_.reset();
    return reason_;
  }

 private:
  void end(const control::Finding& finding) {
    reason_ = std::make_exception_ptr(CommError(finding.sentence));
    world_->abort(std::max(0, finding.rank), reason_, finding.sentence);
  }

  const int world_size_;
  const std::shared_ptr<in_process::World> world_;
  std::vector<std::shared_ptr<control::OperationLog>> logs_;
  std::exception_ptr reason_; ///< of the watch's thread, until that has been joined
  std::optional<control::ThreadWatch> watch_;
};

} // namespace

void make_first_vector_calls() {
  static const bool once = [] {
    for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
      const at::Tensor x = at::full({1}, 0.5, type);
      using Function = at::Tensor (*)(const at::Tensor&);
      for (const Function function :
           std::initializer_list<Function>{at::exp, at::expm1, at::log, at::log1p, at::tanh,
                                           at::sin, at::cos, at::sqrt, at::erf, at::erfc})
        function(x);
    }
    return true;
  }();
  static_cast<void>(once);
}

int current_rank() {
  return t_rank;
}
void set_current_rank(int rank) {
  t_rank = rank;
}

void run_ranks(int world_size, const RankThreadsOptions& options,
               const std::function<void(Group world)>& body) {
  if (world_size < 1) raise<ConfigError>("{} ranks are too few: at least 1 is needed", world_size);
  if (options.threads_per_rank < 0)
    raise<ConfigError>("threads_per_rank={} is negative", options.threads_per_rank);
  make_first_vector_calls();
  const int callers_threads = at::get_num_threads();
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank
                                                   : std::max(1, callers_threads / world_size);

  auto world = std::make_shared<in_process::World>(
      world_size, options.stream_order ? in_process::Order::kStreams : in_process::Order::kFree);
  std::vector<int> members(world_size);
  std::iota(members.begin(), members.end(), 0);
  auto group = std::make_shared<in_process::GroupState>(world, "world", std::move(members));
  const at::ThreadLocalState callers_state;
  Watch watch(world_size, options, world);

  auto run_rank = [&](int rank) {
    t_rank = rank;
    pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
    try {
      at::set_num_threads(threads);
      const at::ThreadLocalStateGuard state(callers_state);
      body(Group(
          watch.monitored(std::make_shared<in_process::InProcessBackend>(group, rank), rank)));
      world->finish(rank);
      watch.finished(rank);
    } catch (...) {
      const std::exception_ptr reason = std::current_exception();
      const std::string sentence = Failure::of(reason).sentence;
      world->abort(rank, reason, sentence);
      watch.failed(rank, sentence);
    }
  };

  std::vector<std::thread> rank_threads;
  try {
    for (int rank = 0; rank < world_size; ++rank) rank_threads.emplace_back(run_rank, rank);
  } catch (const std::system_error& error) {
    const int rank = static_cast<int>(rank_threads.size());
    const std::string text = fmt::format("its thread did not start ({})", error.what());
    world->abort(rank, std::make_exception_ptr(CommError(text)), text);
    watch.failed(rank, text);
  }
  for (std::thread& thread : rank_threads) thread.join();
  at::set_num_threads(callers_threads); // torch keeps the last setting for threads to come

  const std::exception_ptr& of_watch = watch.reason();
  if (of_watch && of_watch == world->reason()) std::rethrow_exception(of_watch);
  if (world->failed_rank() >= 0)
    Failure::of(world->reason())
        .raise(fmt::format("rank {} of {}: ", world->failed_rank(), world_size));
}

void run_ranks(int world_size, const std::function<void(Group world)>& body) {
  run_ranks(world_size, {}, body);
}

} // namespace pentatron::comm
