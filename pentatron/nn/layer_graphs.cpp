#include "pentatron/nn/layer_graphs.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/nn/segment.h"

namespace pentatron::nn {

namespace {

/// Passes before graphs are recorded.
constexpr int kWithoutGraphs = 2;

/// Where keep_for_graph() puts tensors; null: no graph is being recorded. The autograd engine has
/// threads of its own.
std::atomic<std::vector<at::Tensor>*> keeps = nullptr;
std::mutex keeping;

class Recording {
 public:
  explicit Recording(std::vector<at::Tensor>& kept) { keeps = &kept; }
  ~Recording() { keeps = nullptr; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
};

bool same_documents(const SequenceLayout& a, const SequenceLayout& b) {
  return a.sequence == b.sequence && a.sample_starts == b.sample_starts &&
         a.document_starts == b.document_starts && a.real.empty() && b.real.empty() &&
         !a.positions_given && !b.positions_given;
}

} // namespace

bool records_graph() {
  return keeps != nullptr;
}

void keep_for_graph(const at::Tensor& x) {
  const std::lock_guard lock(keeping);
  if (std::vector<at::Tensor>* const kept = keeps) kept->push_back(x);
}

LayerGraphs::LayerGraphs(int stream, Maker make)
    : stream_(static_cast<size_t>(stream)), make_(std::move(make)) {}
LayerGraphs::~LayerGraphs() = default;

void LayerGraphs::check_layout(const ForwardContext& ctx) {
  const SequenceLayout& layout = ctx.batch->layouts[stream_];
  if (passes_ == 0) layout_ = layout;
  if (!same_documents(layout, layout_))
    raise<ConfigError>("train.cuda_graphs=true needs microbatches whose documents have the same "
                       "lengths, and those of this data differ\n  try: train.cuda_graphs=false");
}

at::Tensor LayerGraphs::forward(const at::Tensor& in, ForwardContext& ctx, Tape& own,
                                const Pass& run) {
  check_layout(ctx);
  if (passes_ < kWithoutGraphs) {
    ++passes_;
    return run(in, own);
  }
  PT_DCHECK(!under_way_);
  under_way_ = true;
  if (forward_ != nullptr) {
    in_.copy_(in);
    for (Param* const param : uses_) param->add_use();
    forward_->launch();
    return out_;
  }
  layout_ = ctx.batch->layouts[stream_]; // with the tensors that the graph reads
  in_ = in.detach().clone();
  tape_ = std::make_unique<Tape>();
  forward_ = make_(nullptr);
  ctx.uses = &uses_;
  {
    const Recording recording(kept_);
    forward_->record([&] { out_ = run(in_, *tape_); });
  }
  ctx.uses = nullptr;
  for (Param* const param : uses_)
    if (std::ranges::find(params_, param) == params_.end()) params_.push_back(param);
  forward_->launch();
  return out_;
}

at::Tensor LayerGraphs::backward(const at::Tensor& gradient, Tape& own, const Pass& run) {
  if (!std::exchange(under_way_, false)) return run(gradient, own);
  // The graph adds to the sums, also where they would be written.
  for (Param* const param : params_) param->main_grad();
  if (backward_ != nullptr) {
    gradient_.copy_(gradient);
    backward_->launch();
    for (Param* const param : uses_) param->accumulated();
    return given_;
  }
  gradient_ = gradient.clone();
  backward_ = make_(forward_.get());
  // One use more: who hears that a gradient is complete does so when it will be.
  for (Param* const param : params_) param->add_use();
  {
    const Recording recording(kept_);
    backward_->record([&] { given_ = run(gradient_, *tape_); });
  }
  backward_->launch();
  for (Param* const param : params_) param->accumulated();
  return given_;
}

} // namespace pentatron::nn
