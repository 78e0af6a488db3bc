/// Constant data that one process of a machine makes and the others map: entries in files without
/// names. The files are gone with the last process that has them open or mapped, however it ends.
///
/// One process makes a store. The others open it by its address, through /proc: they are of the
/// same user, and a process id means the same to them. Where the file system has no files without
/// names (O_TMPFILE), a process that is killed between two system calls leaves an empty file
/// "pentatron-shared-XXXXXX".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron {

class MachineStore {
 public:
  /// In those of the folders in which a file can be made; the first has room for data first, and so
  /// on. Throws Error if none can.
  static std::shared_ptr<MachineStore> make(const std::vector<std::filesystem::path>& folders);
  /// The store of another process, which holds it meanwhile. Throws Error if it cannot be opened.
  static std::shared_ptr<MachineStore> open(const std::string& address);
  ~MachineStore();
  MachineStore(const MachineStore&) = delete;
  MachineStore& operator=(const MachineStore&) = delete;
  std::string address() const;

  /// Held by one thread of all processes at a time, at most until its process ends. The calls below
  /// need it.
  class Lock {
   public:
    explicit Lock(MachineStore& store);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    MachineStore& store_;
  };

  /// Mapped read-only; `bytes` are valid while `owner` lives, also without the store, and begin at
  /// a multiple of 64. The entry that does not exist has no owner.
  struct Entry {
    std::shared_ptr<const void> owner;
    std::span<const std::byte> bytes;
  };
  Entry find(std::string_view key) const;
  /// Appends to the entry.
  using Put = std::function<void(std::span<const std::byte>)>;
  /// A new entry of the bytes that `write` puts, at most `size`, for which there is room when it is
  /// called (again, if a folder fails meanwhile). `key` has 1 to 47 characters. Throws Error, with
  /// each folder's reason, if no folder has room.
  Entry add(std::string_view key, size_t size, const std::function<void(const Put&)>& write);

  /// Tells all processes that nothing more is to be added.
  void close();
  bool closed() const;

 private:
  struct File {
    std::filesystem::path folder; // for messages
    int descriptor;
  };
  MachineStore() = default;
  Entry map(const File& file, uint64_t at, uint64_t size) const;

  std::vector<File> files_;
  std::mutex mutex_; // for threads, which share the descriptors and so the lock of the first file
};

} // namespace pentatron
