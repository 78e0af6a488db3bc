#include "pentatron/base/error.h"
#include "pentatron/nn/stream_graph.h"

namespace pentatron::nn {

std::unique_ptr<StreamGraph> StreamGraph::make(const StreamGraph*) {
  raise<Error>("internal error: this build has no CUDA graphs");
}

} // namespace pentatron::nn
