#include "pentatron/nn/memory/memory_room.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>

#include "pentatron/base/control_group.h"

namespace pentatron::nn {

namespace {

using RoomClock = std::chrono::steady_clock;

constexpr auto kLookAfter = std::chrono::milliseconds(50);
constexpr int64_t kLookAfterBytes = int64_t{64} << 20;

std::atomic<bool> has_memory_limit{false};

class WatchedRoom {
 public:
  void watch(const std::filesystem::path& root) {
    const std::lock_guard lock(mutex_);
    root_ = root;
    has_memory_limit.store(look(), std::memory_order_relaxed);
  }

  bool take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (allocated_ >= kLookAfterBytes || bytes > bytes_ - allocated_ ||
        RoomClock::now() - looked_ >= kLookAfter)
      look();
    if (bytes > bytes_) return false;
    allocated_ += bytes;
    return true;
  }

 private:
  /// Whether there is a limit.
  bool look() {
    const auto room = read_control_group(root_).memory_room_bytes;
    bytes_ = room.value_or(std::numeric_limits<int64_t>::max());
    allocated_ = 0;
    looked_ = RoomClock::now();
    return room.has_value();
  }

  std::mutex mutex_;
  std::filesystem::path root_ = "/";
  int64_t bytes_ = 0;     ///< at the last look
  int64_t allocated_ = 0; ///< since then
  RoomClock::time_point looked_;
};

WatchedRoom& watched_room() {
  static auto* const instance = new WatchedRoom; // tensors may outlive every static object
  return *instance;
}

} // namespace

void watch_memory_room(const std::filesystem::path& root) {
  watched_room().watch(root);
}

bool room_for(size_t bytes) {
  return !has_memory_limit.load(std::memory_order_relaxed) ||
         watched_room().take(static_cast<int64_t>(bytes));
}

void require_room(size_t bytes) {
  TORCH_CHECK(
      room_for(bytes), "can't allocate memory: ", bytes,
      " bytes are more than the memory limit of the control group (container or job) leaves");
}

} // namespace pentatron::nn
