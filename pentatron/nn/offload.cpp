#include "pentatron/nn/offload.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include "pentatron/base/io_thread.h"
#include "pentatron/nn/block_file.h"
#include "pentatron/nn/side_stream.h"

namespace pentatron::nn {

namespace {

/// Smaller tensors stay: statistics of norms, numbers of tokens.
constexpr int64_t kSmallest = 4096;

/// Where the bytes of a storage are while nobody needs them.
class Stored {
 public:
  virtual ~Stored() = default;
  /// It will be fetched: what has not left yet stays.
  virtual void want() {}
  /// Starts to bring it back; may be called again.
  virtual void fetch() = 0;
  /// The storage, of whom views share it.
  virtual c10::Storage storage() = 0;
};

/// What a layer keeps of one microbatch.
struct Layer {
  std::shared_ptr<Layer> before; ///< the layer that backward needs next
  std::vector<std::weak_ptr<Stored>> stored;

  void want() { each(&Stored::want); }
  void fetch() { each(&Stored::fetch); }

 private:
  void each(void (Stored::*call)()) {
    for (const std::weak_ptr<Stored>& entry : stored)
      if (const std::shared_ptr<Stored> one = entry.lock()) (one.get()->*call)();
  }
};

/// One tensor: a view of a storage.
struct Token {
  std::shared_ptr<Stored> stored;
  std::shared_ptr<Layer> layer;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  at::ScalarType type = at::kFloat;
};

/// What both kinds of offload share: which storages are copied, and when they come back.
class LayeredOffload : public Offload {
 public:
  void begin_pass() override { layer_ = nullptr; }

  void begin_layer(const std::vector<at::Tensor>& staying) override {
    settle();
    filling_ = true;
    auto next = std::make_shared<Layer>();
    next->before = std::exchange(layer_, nullptr);
    layer_ = std::move(next);
    staying_.clear();
    for (const at::Tensor& x : staying)
      if (x.defined()) staying_.push_back(x.storage().unsafeGetStorageImpl());
    std::erase_if(copied_, [](const auto& entry) { return entry.second.alive.expired(); });
  }

  void begin_staying_layer() override { settle(); }

  std::shared_ptr<void> on_save(const at::Tensor& x) override {
    const c10::Storage& storage = x.storage();
    c10::StorageImpl* const key = storage.unsafeGetStorageImpl();
    if (static_cast<int64_t>(storage.nbytes()) < kSmallest || layer_ == nullptr ||
        std::ranges::find(staying_, key) != staying_.end())
      return nullptr;
    const auto found = copied_.find(key);
    std::shared_ptr<Stored> stored;
    // An address that was freed may belong to another storage now.
    if (found != copied_.end() && !found->second.alive.expired())
      stored = found->second.stored.lock();
    if (stored == nullptr) {
      stored = copy(storage, x.device());
      copied_.insert_or_assign(key, Copied{storage.getWeakStorageImpl(), stored});
      layer_->stored.push_back(stored);
    }
    return std::make_shared<Token>(Token{.stored = std::move(stored),
                                         .layer = layer_,
                                         .sizes = x.sizes().vec(),
                                         .strides = x.strides().vec(),
                                         .offset = x.storage_offset(),
                                         .type = x.scalar_type()});
  }

  at::Tensor on_load(const std::shared_ptr<void>& opaque) override {
    const auto token = std::static_pointer_cast<Token>(opaque);
    if (std::exchange(filling_, false)) {
      // What other passes keep leaves first, also what their last layer keeps: its room is needed.
      token->layer->want();
      if (token->layer->before != nullptr) token->layer->before->want();
      settle();
      settle();
    }
    token->layer->fetch();
    if (token->layer->before != nullptr) token->layer->before->fetch();
    const c10::Storage storage = token->stored->storage();
    return at::empty({0}, at::TensorOptions().dtype(token->type).device(storage.device()))
        .set_(storage, token->offset, token->sizes, token->strides);
  }

 protected:
  /// Starts to copy; the storage is held until it has ended.
  virtual std::shared_ptr<Stored> copy(const c10::Storage& storage, at::Device device) = 0;
  /// A layer has ended: what the one before keeps has been copied.
  virtual void settle() = 0;

 private:
  struct Copied {
    c10::weak_intrusive_ptr<c10::StorageImpl> alive;
    std::weak_ptr<Stored> stored;
  };
  std::shared_ptr<Layer> layer_;
  bool filling_ = false; ///< layers have kept something since the last one was read
  std::vector<const c10::StorageImpl*> staying_;
  std::map<const c10::StorageImpl*, Copied> copied_;
};

/// Threads that write and read, and what they tell the rank.
struct FileTraffic {
  explicit FileTraffic(const std::filesystem::path& folder) : file(folder) {}

  BlockFile file;
  std::mutex mutex; ///< of what follows, and of the states of storages
  std::condition_variable changed;
  int64_t begun = 0, written = 0;                   ///< copies out, which end in their order
  std::exception_ptr failure;                       ///< the first
  IoThreads writer{1, 1 << 20}, reader{1, 1 << 20}; // the last members: they end first
};

class StoredInFile final : public Stored, public std::enable_shared_from_this<StoredInFile> {
 public:
  /// `traffic` is alive as long as any of these: slots hold the hooks that own it.
  StoredInFile(FileTraffic& traffic, c10::Storage storage)
      : t_(traffic), bytes_(storage.nbytes()), offset_(t_.file.take(bytes_)),
        held_(std::move(storage)) {}
  ~StoredInFile() override { t_.file.give_back(bytes_, offset_); }

  void leave() {
    {
      const std::lock_guard lock(t_.mutex);
      ++t_.begun;
    }
    t_.writer.submit([self = shared_from_this()] {
      const std::exception_ptr failure =
          failure_of([&] { self->t_.file.write(self->held_.data(), self->bytes_, self->offset_); });
      {
        c10::Storage dropped; // freed here: without the lock, and before it counts as written
        self->ended(failure, [&] {
          self->writing_ = false;
          if (!self->wanted_ && !failure) dropped = std::exchange(self->held_, c10::Storage());
        });
      }
      self->ended(nullptr, [&] { ++self->t_.written; });
    });
  }

  void want() override {
    const std::lock_guard lock(t_.mutex);
    wanted_ = wanted_ || writing_;
  }

  void fetch() override {
    {
      const std::lock_guard lock(t_.mutex);
      if (std::exchange(wanted_, true) || writing_) return; // it has not left
      coming_ = true;
    }
    held_ = at::empty({static_cast<int64_t>(bytes_)}, at::kByte).storage();
    t_.reader.submit([self = shared_from_this()] {
      const std::exception_ptr failure = failure_of(
          [&] { self->t_.file.read(self->held_.mutable_data(), self->bytes_, self->offset_); });
      self->ended(failure, [&] { self->coming_ = false; });
    });
  }

  c10::Storage storage() override {
    fetch();
    std::unique_lock lock(t_.mutex);
    t_.changed.wait(lock, [&] { return !coming_ || t_.failure; });
    if (t_.failure) std::rethrow_exception(t_.failure);
    return held_;
  }

 private:
  template <class Fn> static std::exception_ptr failure_of(Fn&& fn) {
    try {
      fn();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  template <class Fn> void ended(const std::exception_ptr& failure, Fn&& change) {
    {
      const std::lock_guard lock(t_.mutex);
      if (failure && !t_.failure) t_.failure = failure;
      change();
    }
    t_.changed.notify_all();
  }

  FileTraffic& t_;
  size_t bytes_;
  int64_t offset_;
  c10::Storage held_;
  bool writing_ = true, coming_ = false;
  bool wanted_ = false; ///< by the backward pass: it stays when it is here
};

class FileOffload final : public LayeredOffload {
 public:
  explicit FileOffload(const std::filesystem::path& folder) : traffic_(folder) {}

 protected:
  std::shared_ptr<Stored> copy(const c10::Storage& storage, at::Device) override {
    auto stored = std::make_shared<StoredInFile>(traffic_, storage);
    stored->leave();
    return stored;
  }
  void settle() override {
    std::unique_lock lock(traffic_.mutex);
    traffic_.changed.wait(lock, [&] { return traffic_.written >= last_ || traffic_.failure; });
    if (traffic_.failure) std::rethrow_exception(traffic_.failure);
    last_ = traffic_.begun;
  }

 private:
  FileTraffic traffic_;
  int64_t last_ = 0; ///< copies that had begun when the last layer did
};

/// Copies by a stream beside the one that computes.
class HostOffload final : public LayeredOffload {
 public:
  /// A storage on its way; events mark where its copies end.
  class InHost final : public Stored {
   public:
    InHost(HostOffload& owner, const c10::Storage& storage, at::Device device)
        : owner_(owner), device_(device), held_(storage), left_(device.type()) {
      const at::Tensor source = bytes_of(storage, device);
      host_ = at::empty(source.sizes(), at::TensorOptions().dtype(at::kByte).pinned_memory(true));
      owner_.stream_->after_computing([&] { host_.copy_(source, /*non_blocking=*/true); }, left_);
    }
    /// What computes next may get the memory that a copy still writes.
    ~InHost() override {
      if (!back_) return;
      try {
        back_->block(owner_.stream_->computing());
      } catch (...) {
        // The GPU has failed, and every later call says so.
      }
    }
    /// Gives the storage back, to be used again behind the copy.
    void leave() {
      if (wanted_) return;
      left_.block(owner_.stream_->computing());
      held_ = c10::Storage();
    }
    void want() override { wanted_ = true; }
    void fetch() override {
      want();
      if (held_ || here_.defined()) return;
      here_ = at::empty(host_.sizes(), at::TensorOptions().dtype(at::kByte).device(device_));
      back_.emplace(device_.type());
      owner_.stream_->after_computing([&] { here_.copy_(host_, /*non_blocking=*/true); }, *back_);
    }
    c10::Storage storage() override {
      fetch();
      if (held_) return held_;
      back_->block(owner_.stream_->computing());
      return here_.storage();
    }

   private:
    static at::Tensor bytes_of(const c10::Storage& storage, at::Device device) {
      return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device))
          .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
    }
    HostOffload& owner_;
    at::Device device_;
    c10::Storage held_; ///< until it has left
    at::Tensor host_, here_;
    c10::Event left_;
    std::optional<c10::Event> back_;
    bool wanted_ = false; ///< by the backward pass: what is here stays
  };

 protected:
  std::shared_ptr<Stored> copy(const c10::Storage& storage, at::Device device) override {
    if (!stream_) stream_.emplace(device);
    leaving_.push_back(std::make_shared<InHost>(*this, storage, device));
    return leaving_.back();
  }
  /// The host runs ahead of the GPU and must not wait for it, so the GPU does.
  void settle() override {
    for (auto one = leaving_.begin(); one != leaving_.begin() + last_; ++one) (*one)->leave();
    leaving_.erase(leaving_.begin(), leaving_.begin() + last_);
    last_ = std::ssize(leaving_);
  }

 private:
  std::optional<SideStream> stream_;
  std::vector<std::shared_ptr<InHost>> leaving_;
  int64_t last_ = 0; ///< of these, those that began before the last layer did
};

} // namespace

std::shared_ptr<Offload> offload_to_file(const std::filesystem::path& folder) {
  return std::make_shared<FileOffload>(folder);
}

std::shared_ptr<Offload> offload_to_host() {
  return std::make_shared<HostOffload>();
}

} // namespace pentatron::nn
