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
  enum class Existing : uint8_t { kReplace, kRefuse };
  /// Makes it durable and visible. An existing file is replaced, or, as Error, refused.
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

/// Throws ConfigError if one of the files that an option names is there, whatever it is.
void refuse_existing(std::span<const std::filesystem::path> outputs,
                     std::string_view option = "--output");

/// Creates a folder in `folder` and removes it, because permissions do not cover read-only and full
/// disks. Returns what failed.
std::error_code try_to_write(const std::filesystem::path& folder);

/// Throws ConfigError unless `output`, which an option or argument names, can be created: it or the
/// nearest existing folder above it must be writable.
void require_output(const std::filesystem::path& output, std::string_view option);

/// Throws ConfigError unless `output`, which an option names, can be a file in an existing folder;
/// `extension` (".json") is what such files end in.
void require_folder_of(const std::filesystem::path& output, std::string_view option,
                       std::string_view extension);

/// For --overwrite: throws ConfigError if `output` is one of the inputs, under any name, or if it
/// is there and `is_one` finds that it is not `what` ("a plot"), which such a command writes.
void check_replaced(const std::filesystem::path& output,
                    std::span<const std::filesystem::path> inputs, std::string_view option,
                    std::string_view what,
                    const std::function<bool(const std::filesystem::path&)>& is_one);

/// The first of NAME-2.ext, NAME-3.ext, ... that does not exist, for another output than `taken`.
std::filesystem::path free_path(const std::filesystem::path& taken);

/// Whether `inner` is `outer` or lies in it, links followed.
bool contains_path(const std::filesystem::path& outer, const std::filesystem::path& inner);

/// The whole content at once.
void write_file_atomically(const std::filesystem::path& target, std::string_view text,
                           AtomicFile::Existing existing = AtomicFile::Existing::kReplace);

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
  enum class Existing : uint8_t { kRefuse, kReplace };

  /// Fsyncs every file and folder in it, renames it and fsyncs the parent. If `target` exists, it
  /// is replaced, or, as Error, refused.
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
