#include "pentatron/nn/state_store.h"

#include <future>
#include <map>

#include <sys/mman.h>

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/base/io_thread.h"
#include "pentatron/nn/block_file.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/side_stream.h"

namespace pentatron::nn {

namespace {

std::vector<at::Tensor> buffers_like(const std::vector<at::Tensor>& pieces, at::Device device) {
  const MemoryScope scope(MemoryCategory::kOptimizer);
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& piece : pieces)
    buffers.push_back(
        at::empty({piece.numel()}, piece.options().device(device).pinned_memory(false)));
  return buffers;
}

class FileStore final : public StateStore {
 public:
  explicit FileStore(const std::filesystem::path& folder) : file_(folder) {}
  ~FileStore() override {
    for (const auto& [data, mapping] : mappings_) ::munmap(const_cast<char*>(data), mapping.bytes);
  }

  at::Tensor add(int64_t n, at::ScalarType type) override {
    const size_t bytes = static_cast<size_t>(n) * c10::elementSize(type);
    const size_t rounded =
        std::max<size_t>(1, (bytes + BlockFile::kPage - 1) / BlockFile::kPage) * BlockFile::kPage;
    const int64_t offset = file_.take(rounded);
    file_.reserve(rounded, offset);
    auto* const data = static_cast<char*>(file_.map(rounded, offset));
    mappings_.emplace(data, Mapping{rounded, offset});
    return at::from_blob(data, {n}, at::TensorOptions().dtype(type));
  }

  std::shared_ptr<Part> bring(const std::vector<at::Tensor>& pieces) override {
    return std::make_shared<FilePart>(*this, pieces);
  }

 private:
  struct Mapping {
    size_t bytes = 0;
    int64_t offset = 0;
  };

  int64_t offset_of(const at::Tensor& piece) const {
    const auto* const data = static_cast<const char*>(piece.const_data_ptr());
    const auto& [base, mapping] = *std::prev(mappings_.upper_bound(data));
    PT_DCHECK(data >= base && data + piece.nbytes() <= base + mapping.bytes);
    return mapping.offset + (data - base);
  }

  class FilePart final : public Part {
   public:
    FilePart(FileStore& store, const std::vector<at::Tensor>& pieces) : store_(store) {
      buffers_ = buffers_like(pieces, at::kCPU);
      for (const at::Tensor& piece : pieces) {
        offsets_.push_back(store.offset_of(piece));
        BlockFile::drop_pages(piece.const_data_ptr(), piece.nbytes());
      }
      arrived_ = start(store.reader_, [](const BlockFile& file, const at::Tensor& x, int64_t at) {
        file.read(x.data_ptr(), x.nbytes(), at);
      });
    }
    // Threads hold no part, so nobody frees buffers below them.
    ~FilePart() override {
      if (arrived_.valid()) arrived_.wait();
      if (left_.valid()) left_.wait();
    }
    void arrive() override { arrived_.get(); }
    void leave() override {
      left_ = start(store_.writer_, [](const BlockFile& file, const at::Tensor& x, int64_t at) {
        file.write(x.const_data_ptr(), x.nbytes(), at);
      });
    }
    void settle() override { left_.get(); }

   private:
    template <class Move> std::future<void> start(IoThreads& thread, Move move) {
      auto done = std::make_shared<std::promise<void>>();
      std::future<void> future = done->get_future();
      thread.submit([this, move, done] {
        try {
          for (size_t i = 0; i < buffers_.size(); ++i) move(store_.file_, buffers_[i], offsets_[i]);
          done->set_value();
        } catch (...) {
          done->set_exception(std::current_exception());
        }
      });
      return future;
    }

    FileStore& store_;
    std::vector<int64_t> offsets_;
    std::future<void> arrived_, left_;
  };

  BlockFile file_;
  std::map<const char*, Mapping> mappings_;
  IoThreads reader_{1}, writer_{1}; // the last members: they end first
};

class HostStore final : public StateStore {
 public:
  explicit HostStore(at::Device device) : device_(device), stream_(device) {}

  at::Tensor add(int64_t n, at::ScalarType type) override {
    return at::zeros({n}, at::TensorOptions().dtype(type).pinned_memory(true));
  }
  std::shared_ptr<Part> bring(const std::vector<at::Tensor>& pieces) override {
    return std::make_shared<HostPart>(*this, pieces);
  }

 private:
  class HostPart final : public Part {
   public:
    HostPart(HostStore& store, const std::vector<at::Tensor>& pieces)
        : store_(store), pieces_(pieces), moved_(store.device_.type()) {
      buffers_ = buffers_like(pieces, store.device_);
      move(pieces_, buffers_);
    }
    void arrive() override { moved_.block(store_.stream_.computing()); }
    void leave() override { move(buffers_, pieces_); }
    void settle() override { moved_.synchronize(); }

   private:
    void move(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
      store_.stream_.after_computing(
          [&] {
            for (size_t i = 0; i < from.size(); ++i)
              at::Tensor(to[i]).copy_(from[i], /*non_blocking=*/true);
          },
          moved_);
    }
    HostStore& store_;
    std::vector<at::Tensor> pieces_;
    c10::Event moved_;
  };

  at::Device device_;
  SideStream stream_;
};

} // namespace

std::shared_ptr<StateStore> state_store_in_file(const std::filesystem::path& folder) {
  return std::make_shared<FileStore>(folder);
}

std::shared_ptr<StateStore> state_store_in_host(at::Device device) {
  return std::make_shared<HostStore>(device);
}

} // namespace pentatron::nn
