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
         a.document_starts == b.document_starts;
}

[[noreturn]] void refuse(const char* why) {
  raise<ConfigError>("train.cuda_graphs=true needs microbatches whose documents have the same "
                     "lengths, and {}\n  try: train.cuda_graphs=false",
                     why);
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
  if (!layout.real.empty()) refuse("these have padding");
  if (layout.positions_given) refuse("the data gives positions");
  if (passes_ == 0) layout_ = layout;
  if (!same_documents(layout, layout_)) refuse("those of this data differ");
}

void LayerGraphs::forget() {
  PT_DCHECK(under_way_ == nullptr);
  backward_ = nullptr; // before forward_, whose memory it uses
  forward_ = nullptr;
  in_ = out_ = gradient_ = given_ = at::Tensor();
  tape_ = nullptr;
  for (auto* list : {&uses_, &params_}) list->clear();
  kept_.clear();
  passes_ = 0;
}

at::Tensor LayerGraphs::forward(const at::Tensor& in, ForwardContext& ctx, Tape& own,
                                const Pass& run) {
  check_layout(ctx);
  if (passes_ < kWithoutGraphs) {
    ++passes_;
    return run(in, own);
  }
  // A graph has one microbatch's activations, and cannot leave gradients of weights for later.
  PT_DCHECK(under_way_ == nullptr && (ctx.wgrad == nullptr || !ctx.wgrad->deferred()));
  under_way_ = &own;
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
  if (under_way_ == nullptr) return run(gradient, own);
  PT_DCHECK(under_way_ == &own);
  under_way_ = nullptr;
  Param::define_sums(params_); // the graph adds to them, also where they would be written
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
