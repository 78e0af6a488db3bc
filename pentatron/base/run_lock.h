/// `run.lock`: the lock of a process on a folder, held until the process ends.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace pentatron {

/// An open file description lock (fcntl F_OFD_SETLK) on FOLDER/run.lock. The kernel drops it when
/// the process ends, in whatever way; on NFSv4 it holds between machines.
class RunLock {
 public:
  RunLock() = default;
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;

  /// Takes the lock of an existing folder. With `create`, creates the lock file if it is missing
  /// and writes the holder to it; without, writes nothing and treats a folder without the file as
  /// free. Returns the holder ("process 12 on HOST since TIME") if another process has the lock;
  /// nothing if the lock was taken, is free, or the file system does not support locks. Throws
  /// Error if the file cannot be opened.
  std::optional<std::string> take(const std::filesystem::path& folder, bool create);
  bool held() const { return descriptor_ >= 0; }
  /// Gives it up and removes the file, if take() made it here.
  void remove() noexcept;

 private:
  std::optional<std::string> take(const std::filesystem::path& folder, bool create, int tries);
  void sign() const;

  int descriptor_ = -1;
  std::filesystem::path made_; ///< the file, if this made it
};

} // namespace pentatron
