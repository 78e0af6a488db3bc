/// Files and folders that appear completely or not at all: they are written under a temporary name,
/// fsynced and renamed, and the parent folder is fsynced. Every error of the operating system (full
/// disk, no permission) is an Error that names the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

namespace pentatron {

/// What becomes of a target that exists: it is replaced, or, as Error, refused.
enum class Existing : uint8_t { kReplace, kRefuse };

/// A new content for `target`. Until commit() the target is untouched; without it nothing remains.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Writes at a position from the start; does not move where write() appends.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  /// Makes it durable and visible.
  void commit(Existing existing = Existing::kReplace);

 private:
  std::filesystem::path target_;
  std::filesystem::path aside_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

/// The lock of an existing folder (flock of the folder itself): held by one process or thread at a
/// time, which others wait for, until the end of the object or of the process.
class FolderLock {
 public:
  enum class IfTaken : uint8_t { kWait, kGiveUp };
  explicit FolderLock(const std::filesystem::path& folder, IfTaken if_taken = IfTaken::kWait);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  /// False on a file system without locks, or after giving up.
  bool held() const { return held_; }

 private:
  int descriptor_;
  bool held_ = false;
};

/// Creates a folder "NAME.tmp-PID-N" beside `target` and removes those of killed processes. The
/// caller keeps `lock` as long as it writes there: a folder without one was left behind.
std::filesystem::path create_aside(const std::filesystem::path& target,
                                   std::optional<FolderLock>& lock);

/// The whole content at once.
void write_file_atomically(const std::filesystem::path& target, std::string_view text);

/// A folder `target` filled under the name `target`.tmp-* beside it.
class AtomicDirectory {
 public:
  /// `progress` is called for each file that is synced or removed.
  explicit AtomicDirectory(std::filesystem::path target, std::function<void()> progress = {});
  ~AtomicDirectory(); ///< removes what was not committed
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  /// Where to write.
  const std::filesystem::path& path() const { return aside_; }
  /// Fsyncs every file and folder in it, renames it and fsyncs the parent.
  void commit(Existing existing = Existing::kRefuse);

 private:
  std::filesystem::path target_;
  std::optional<FolderLock> lock_; // before the folder, which it is of
  std::filesystem::path aside_;
  std::function<void()> progress_;
};

/// Removes a file, or a folder with everything in it, file by file. Returns the first error.
std::error_code remove_tree(const std::filesystem::path& path,
                            const std::function<void()>& progress = {});

/// fsync of one file or folder.
void sync_path(const std::filesystem::path& path);

} // namespace pentatron
