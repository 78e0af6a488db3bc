/// Work on the files of a dataset in threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "pentatron/base/log.h"

namespace pentatron::data {

/// Calls work(i) for each i below `count`, in up to `threads` threads, whose messages go where
/// those of this one go. What is thrown for the lowest i is thrown again, whatever the threads'
/// speed; the calls after it are not begun then.
template <class F> void for_each_file(size_t count, int64_t threads, const F& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    const auto most = std::min<size_t>(count, static_cast<size_t>(std::max<int64_t>(threads, 1)));
    const log::ThreadSettings log = log::thread_settings();
    for (size_t i = 1; i < most; ++i)
      workers.emplace_back([&] {
        log::set_thread_settings(log);
        run();
      });
    run();
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

} // namespace pentatron::data
