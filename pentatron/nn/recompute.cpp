#include "pentatron/nn/recompute.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/record.h"
#include "pentatron/nn/saved_detail.h"

namespace pentatron::nn {

namespace {

class RecomputedModule;
thread_local RecomputedModule* t_open = nullptr;    // whose first run this is
thread_local RecomputedModule* t_running = nullptr; // that runs again

class RecomputedModule final : public SlotSource,
                               public std::enable_shared_from_this<RecomputedModule> {
 public:
  RecomputedModule(ModuleFn fn, const std::vector<at::Tensor>& inputs, const ForwardContext& ctx,
                   ModuleInputs kept)
      : fn_(std::move(fn)), ctx_(ctx),
        inputs_(std::make_shared<Saved>("recomputed_module", inputs, std::vector<at::Tensor>())),
        kept_(kept) {
    if (kept_ == ModuleInputs::kMadeAgain) detail::claim(inputs_);
    detail::keep(inputs_);
    ctx_.count_uses = false;
    for (const at::Tensor& x : inputs)
      if (x.defined()) input_storages_.push_back(x.storage().unsafeGetStorageImpl());
    if (ctx.layout == nullptr) return; // its tensors are there anyway: as inputs
    for (const at::Tensor& x : {ctx.layout->positions, ctx.layout->row_ids})
      if (x.defined()) input_storages_.push_back(x.storage().unsafeGetStorageImpl());
  }

  bool is_input(const at::Tensor& x) const {
    return std::ranges::count(input_storages_, x.storage().unsafeGetStorageImpl()) > 0;
  }
  /// Whether an operator inside keeps it, whoever has made it.
  bool keeps(const at::Tensor& x) const { return kept_ == ModuleInputs::kKept && is_input(x); }
  /// Its first run is not that of a module: no operator waits for its tensors.
  void has_no_operators() { has_operators_ = false; }
  void first_run_is_over() { input_storages_.clear(); }
  bool has_run_again() const { return !fn_; }

  /// Of an operator inside.
  void claim(const std::shared_ptr<Saved>& saved) {
    for (size_t i = 0; i < saved->size(); ++i) {
      Inside& place = inside_.emplace_back();
      const at::Tensor& x = saved->held(i);
      if (!x.defined()) continue;
      if (is_input(x)) {
        saved->is_read_by(i, weak_from_this());
        continue;
      }
      place = {.saved = saved, .slot = i};
      saved->wait_for(i, shared_from_this());
    }
  }
  /// Of an operator behind, which keeps a view of output `k`.
  void claim_output(const std::shared_ptr<Saved>& saved, size_t i, size_t k) {
    const at::Tensor& x = saved->held(i);
    behind_.push_back({.saved = saved,
                       .slot = i,
                       .output = k,
                       .sizes = x.sizes().vec(),
                       .strides = x.strides().vec(),
                       .offset = x.storage_offset()});
    saved->wait_for(i, shared_from_this());
  }

  void fill() override {
    const std::shared_ptr<RecomputedModule> alive = shared_from_this();
    if (!fn_ || !is_waited_for()) return;
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < inputs_->size(); ++i) inputs.push_back((*inputs_)[i]);
    if (planted("recomputed_module_without_dropout")) ctx_.training = false;
    const at::NoGradGuard no_grad;
    RecomputedModule* const previous = std::exchange(t_running, has_operators_ ? this : nullptr);
    std::vector<at::Tensor> outputs;
    try {
      outputs = std::exchange(fn_, nullptr)(inputs, ctx_);
    } catch (...) {
      t_running = previous;
      throw;
    }
    t_running = previous;
    if (next_ != inside_.size())
      raise<Error>("internal error: {} of {} tensors were made again", next_, inside_.size());
    for (const Behind& place : behind_) {
      if (const std::shared_ptr<Saved> saved = place.saved.lock())
        saved->fill(place.slot,
                    outputs[place.output].as_strided(place.sizes, place.strides, place.offset));
    }
    inputs_ = nullptr;
    inside_.clear();
    behind_.clear();
  }

  void deliver(const std::vector<at::Tensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (next_ == inside_.size())
        raise<Error>("internal error: a module that runs again keeps more tensors than before");
      const Inside& place = inside_[next_++];
      const std::shared_ptr<Saved> saved = place.saved.lock();
      if (!saved) continue;
      if (place.slot != i || !tensors[i].defined())
        raise<Error>("internal error: {} keeps other tensors when it runs again", saved->name());
      saved->fill(place.slot, tensors[i]);
    }
  }

 private:
  struct Inside {
    std::weak_ptr<Saved> saved;
    size_t slot = 0;
  };
  struct Behind {
    std::weak_ptr<Saved> saved;
    size_t slot = 0, output = 0;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;
  };

  bool is_waited_for() const {
    const auto waits = [](const auto& place) { return !place.saved.expired(); };
    return std::ranges::any_of(inside_, waits) || std::ranges::any_of(behind_, waits);
  }

  ModuleFn fn_;
  ForwardContext ctx_;
  std::shared_ptr<Saved> inputs_;
  ModuleInputs kept_;
  bool has_operators_ = true;
  std::vector<const c10::StorageImpl*> input_storages_; // during the first run
  std::vector<Inside> inside_;                          // every slot, in order
  std::vector<Behind> behind_;
  size_t next_ = 0;
};

/// An output of a module, as long as its storage lives.
struct RecomputedOutput {
  const c10::StorageImpl* storage;
  c10::weak_intrusive_ptr<c10::StorageImpl>
      alive; // while it is there, nothing else has the address
  at::ScalarType type;
  std::shared_ptr<RecomputedModule> module; // perhaps nothing inside waits for it
  size_t number;
};
thread_local std::vector<RecomputedOutput> t_outputs;

void remember_outputs_of(const std::shared_ptr<RecomputedModule>& module,
                         const std::vector<at::Tensor>& outputs) {
  std::erase_if(t_outputs, [](const RecomputedOutput& output) { return output.alive.expired(); });
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!outputs[k].defined() || module->is_input(outputs[k])) continue;
    const c10::Storage& storage = outputs[k].storage();
    t_outputs.push_back({.storage = storage.unsafeGetStorageImpl(),
                         .alive = storage.getWeakStorageImpl(),
                         .type = outputs[k].scalar_type(),
                         .module = module,
                         .number = k});
  }
}

} // namespace

namespace detail {

void claim(const std::shared_ptr<Saved>& saved) {
  if (t_open != nullptr) t_open->claim(saved);
  for (size_t i = 0; i < saved->size(); ++i) {
    const at::Tensor& x = saved->held(i);
    if (!x.defined() || (t_open != nullptr && t_open->keeps(x))) continue;
    for (const RecomputedOutput& output : t_outputs) {
      if (output.storage != x.storage().unsafeGetStorageImpl() || output.type != x.scalar_type() ||
          output.module->has_run_again())
        continue;
      output.module->claim_output(saved, i, output.number);
      break;
    }
  }
}

void deliver(const std::vector<at::Tensor>& tensors) {
  if (t_running != nullptr) t_running->deliver(tensors);
}

void forget_outputs() {
  t_outputs.clear();
}

} // namespace detail

std::vector<at::Tensor> recompute_module(const ModuleFn& fn, const std::vector<at::Tensor>& inputs,
                                         const ForwardContext& ctx, ModuleInputs kept) {
  if (!grad_enabled() || t_open != nullptr) return fn(inputs, ctx);
  const auto module = std::make_shared<RecomputedModule>(fn, inputs, ctx, kept);
  struct Opened {
    explicit Opened(RecomputedModule* module) { t_open = module; }
    ~Opened() { t_open = nullptr; }
  };
  std::vector<at::Tensor> outputs;
  {
    const Opened opened(module.get());
    outputs = fn(inputs, ctx);
  }
  remember_outputs_of(module, outputs);
  module->first_run_is_over();
  return outputs;
}

void make_again(const std::vector<at::Tensor>& outputs, const ModuleFn& fn,
                const std::vector<at::Tensor>& inputs, const ForwardContext& ctx) {
  if (!grad_enabled() || t_open != nullptr) return;
  const auto module = std::make_shared<RecomputedModule>(fn, inputs, ctx, ModuleInputs::kMadeAgain);
  module->has_no_operators();
  remember_outputs_of(module, outputs);
  module->first_run_is_over();
}

std::vector<at::Tensor> run_part(Part part, const ModuleFn& fn,
                                 const std::vector<at::Tensor>& inputs, const ForwardContext& ctx) {
  if (!ctx.recomputed.has(part)) return fn(inputs, ctx);
  return recompute_module(fn, inputs, ctx, ModuleInputs::kMadeAgain);
}

} // namespace pentatron::nn
