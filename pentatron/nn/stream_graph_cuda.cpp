#include "pentatron/nn/stream_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace pentatron::nn {

namespace {

class CudaStreamGraph final : public StreamGraph {
 public:
  explicit CudaStreamGraph(const CudaStreamGraph* memory)
      : pool_(memory != nullptr ? memory->pool_ : at::cuda::graph_pool_handle()),
        // Both record in one stream: memory belongs to a stream.
        stream_(memory != nullptr ? memory->stream_ : c10::cuda::getStreamFromPool()) {
    // Passes without graphs left memory that the graph cannot use and will need itself.
    if (memory == nullptr) c10::cuda::CUDACachingAllocator::emptyCache();
  }

  void record(const std::function<void()>& body) override {
    const c10::cuda::CUDAStreamGuard on(stream_);
    // Other threads, which watch the GPU, may call CUDA meanwhile.
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (const std::exception&) { // the first error says more
      }
      throw;
    }
    graph_.capture_end();
  }

  void launch() override { graph_.replay(); }

 private:
  const at::cuda::MempoolId_t pool_;
  const c10::cuda::CUDAStream stream_;
  at::cuda::CUDAGraph graph_;
};

} // namespace

std::unique_ptr<StreamGraph> StreamGraph::make(const StreamGraph* memory) {
  return std::make_unique<CudaStreamGraph>(static_cast<const CudaStreamGraph*>(memory));
}

} // namespace pentatron::nn
