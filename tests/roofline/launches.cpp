#include "tests/roofline/launches.h"

#include <mutex>
#include <optional>
#include <utility>

namespace pentatron::roofline {

namespace {

std::mutex g_mutex;
std::optional<std::vector<Launch>> g_list;

} // namespace

std::string_view kind_name(Kind kind) {
  constexpr std::string_view kNames[] = {"kernel", "gemm", "attention", "torch", "transfer"};
  return kNames[static_cast<size_t>(kind)];
}

void begin_recording() {
  const std::scoped_lock lock(g_mutex);
  g_list.emplace();
}

std::vector<Launch> end_recording() {
  const std::scoped_lock lock(g_mutex);
  return std::exchange(g_list, std::nullopt).value_or(std::vector<Launch>{});
}

void record(Launch launch) {
  const std::scoped_lock lock(g_mutex);
  if (g_list) g_list->push_back(std::move(launch));
}

bool recording() {
  const std::scoped_lock lock(g_mutex);
  return g_list.has_value();
}

} // namespace pentatron::roofline
