#include "pentatron/nn/saved.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "pentatron/nn/saved_detail.h"

namespace pentatron::nn {

namespace {

thread_local std::shared_ptr<SavedHooks> t_hooks;
thread_local SavedTensors* t_account = nullptr;

} // namespace

SavedHooksScope::SavedHooksScope(std::shared_ptr<SavedHooks> hooks)
    : previous_(std::exchange(t_hooks, std::move(hooks))) {}

SavedHooksScope::~SavedHooksScope() {
  t_hooks = std::move(previous_);
}

Saved::Saved(const char* name, std::vector<at::Tensor> tensors,
             const std::vector<at::Tensor>& outputs)
    : name_(name), slots_(tensors.size()) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& x = tensors[i];
    if (!x.defined()) continue;
    // An output with history would keep its own slots alive.
    const bool history = x.requires_grad() || std::ranges::any_of(outputs, [&](const auto& output) {
                           return output.is_same(x);
                         });
    slots_[i].tensor = history ? x.detach() : std::move(x);
  }
}

const at::Tensor& Saved::operator[](size_t i) {
  Slot& slot = slots_[i];
  if (slot.source) {
    const std::shared_ptr<SlotSource> source = slot.source; // filling lets it go
    source->fill();
  }
  if (slot.token) {
    slot.tensor = slot.hooks->on_load(slot.token);
    slot.token = nullptr;
    slot.hooks = nullptr;
  }
  return slot.tensor;
}

at::Tensor Saved::take(size_t i) {
  (*this)[i];
  return std::move(slots_[i].tensor);
}

at::Tensor Saved::overwrite(size_t i) {
  if (const std::shared_ptr<SlotSource> reader = slots_[i].reader.lock()) reader->fill();
  return take(i);
}

void Saved::wait_for(size_t i, std::shared_ptr<SlotSource> source) {
  slots_[i].tensor = at::Tensor();
  slots_[i].source = std::move(source);
}

void Saved::fill(size_t i, const at::Tensor& x) {
  slots_[i].tensor = x;
  slots_[i].source = nullptr;
}

void Saved::offer(size_t i) {
  Slot& slot = slots_[i];
  if (!t_hooks || !slot.tensor.defined()) return;
  slot.token = t_hooks->on_save(slot.tensor);
  if (!slot.token) return;
  slot.hooks = t_hooks;
  slot.tensor = at::Tensor();
}

std::vector<SavedTensors::Use> SavedTensors::list(const std::vector<at::Tensor>& given) const {
  std::set<const void*> seen;
  for (const at::Tensor& x : given)
    if (x.defined()) seen.insert(x.storage().unsafeGetStorageImpl());
  std::vector<Use> uses;
  for (const std::weak_ptr<const Saved>& entry : operators_) {
    const std::shared_ptr<const Saved> saved = entry.lock();
    if (!saved) continue;
    Use use{.name = saved->name()};
    bool holds = false;
    for (size_t i = 0; i < saved->size(); ++i) {
      const at::Tensor& x = saved->held(i);
      if (!x.defined()) continue;
      holds = true;
      if (seen.insert(x.storage().unsafeGetStorageImpl()).second)
        use.bytes += static_cast<int64_t>(x.storage().nbytes());
    }
    if (holds) uses.push_back(std::move(use));
  }
  return uses;
}

int64_t SavedTensors::bytes(const std::vector<at::Tensor>& given) const {
  int64_t sum = 0;
  for (const Use& use : list(given)) sum += use.bytes;
  return sum;
}

void SavedTensors::add(const SavedTensors& other) {
  operators_.insert(operators_.end(), other.operators_.begin(), other.operators_.end());
}

SavedTensorsScope::SavedTensorsScope(SavedTensors& account)
    : previous_(std::exchange(t_account, &account)) {
  detail::forget_outputs();
}

SavedTensorsScope::~SavedTensorsScope() {
  t_account = previous_;
  detail::forget_outputs();
}

namespace detail {

void keep(const std::shared_ptr<Saved>& saved) {
  for (size_t i = 0; i < saved->size(); ++i) saved->offer(i);
  if (t_account != nullptr && saved->size() > 0) t_account->add(saved);
}

} // namespace detail

std::shared_ptr<Saved> save(const char* name, std::vector<at::Tensor> tensors,
                            const std::vector<at::Tensor>& outputs) {
  auto saved = std::make_shared<Saved>(name, std::move(tensors), outputs);
  detail::claim(saved);
  detail::keep(saved);
  return saved;
}

} // namespace pentatron::nn
