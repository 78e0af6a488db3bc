#include "pentatron/comm/rank_threads.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend/in_process/in_process_backend.h"
#include "pentatron/comm/backend/in_process/world.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>

#include <numeric>
#include <pthread.h>
#include <thread>

namespace pentatron::comm {

namespace {

thread_local int t_rank = 0;

/// The sentence of an exception, without a backtrace.
std::string sentence(const std::exception_ptr& reason) {
  try {
    std::rethrow_exception(reason);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

/// Throws the reason again under its own type, with `prefix` before the sentence.
[[noreturn]] void rethrow(const std::exception_ptr& reason, const std::string& prefix) {
  try {
    std::rethrow_exception(reason);
  } catch (const ConfigError& error) {
    throw ConfigError(prefix + error.what());
  } catch (const ShapeError& error) {
    throw ShapeError(prefix + error.what());
  } catch (const CommError& error) {
    throw CommError(prefix + error.what());
  } catch (const DataError& error) {
    throw DataError(prefix + error.what());
  } catch (const CheckpointError& error) {
    throw CheckpointError(prefix + error.what());
  } catch (...) {
    throw Error(prefix + sentence(std::current_exception()));
  }
}

} // namespace

int current_rank() {
  return t_rank;
}

void run_ranks(int world_size, const RankThreadsOptions& options,
               const std::function<void(Group world)>& body) {
  if (world_size < 1) raise<ConfigError>("a world of {} ranks: at least 1 is needed", world_size);
  if (options.threads_per_rank < 0)
    raise<ConfigError>("threads_per_rank={} is negative", options.threads_per_rank);
  const int callers_threads = at::get_num_threads();
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank
                                                   : std::max(1, callers_threads / world_size);

  auto world = std::make_shared<in_process::World>(world_size);
  std::vector<int> members(world_size);
  std::iota(members.begin(), members.end(), 0);
  auto group = std::make_shared<in_process::GroupState>(world, "world", std::move(members));
  const at::ThreadLocalState callers_state;

  auto run_rank = [&](int rank) {
    t_rank = rank;
    pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
    try {
      at::set_num_threads(threads);
      const at::ThreadLocalStateGuard state(callers_state);
      body(Group(std::make_shared<in_process::InProcessBackend>(group, rank)));
      world->finish(rank);
    } catch (...) {
      const std::exception_ptr reason = std::current_exception();
      world->abort(rank, reason, sentence(reason));
    }
  };

  std::vector<std::thread> rank_threads;
  try {
    for (int rank = 0; rank < world_size; ++rank) rank_threads.emplace_back(run_rank, rank);
  } catch (const std::system_error& error) {
    const int rank = static_cast<int>(rank_threads.size());
    const std::string text = fmt::format("its thread did not start ({})", error.what());
    world->abort(rank, std::make_exception_ptr(CommError(text)), text);
  }
  for (std::thread& thread : rank_threads) thread.join();
  at::set_num_threads(callers_threads); // torch keeps the last setting for threads to come

  if (world->failed_rank() >= 0)
    rethrow(world->reason(), fmt::format("rank {} of {}: ", world->failed_rank(), world_size));
}

void run_ranks(int world_size, const std::function<void(Group world)>& body) {
  run_ranks(world_size, {}, body);
}

} // namespace pentatron::comm
