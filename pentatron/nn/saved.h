/// The tensors that operators save in the forward pass for the backward pass: slots that hooks may
/// empty and fill again, and accounting of their memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pentatron::nn {

/// Makes tensors again that slots have not kept.
class SlotSource {
 public:
  virtual ~SlotSource() = default;
  /// Fills all slots that wait for it.
  virtual void fill() = 0;
};

/// Takes tensors out of slots after forward and gives them back before backward: offload.
class SavedHooks {
 public:
  virtual ~SavedHooks() = default;
  /// Called once for each tensor, when an operator keeps it. Null: the slot keeps the tensor. Else
  /// the slot holds what is returned, until it is loaded or dropped. Operators may still read `x`.
  virtual std::shared_ptr<void> on_save(const at::Tensor& x) = 0;
  /// The tensor of a token, with its sizes and strides. Called once, when backward asks for it.
  virtual at::Tensor on_load(const std::shared_ptr<void>& token) = 0;
};

/// What operators of this thread keep while the object lives goes through `hooks`.
class SavedHooksScope {
 public:
  explicit SavedHooksScope(std::shared_ptr<SavedHooks> hooks);
  ~SavedHooksScope();
  SavedHooksScope(const SavedHooksScope&) = delete;

 private:
  std::shared_ptr<SavedHooks> previous_;
};

/// The slots of one operator, in the order in which record() was given the tensors.
class Saved {
 public:
  /// `outputs` of the operator: of these an alias without history is kept.
  Saved(const char* name, std::vector<at::Tensor> tensors, const std::vector<at::Tensor>& outputs);

  const char* name() const { return name_; }
  size_t size() const { return slots_.size(); }
  /// The tensor, loaded or made again if the slot does not hold it. Undefined if it was undefined.
  const at::Tensor& operator[](size_t i);
  /// The tensor; the slot is empty afterwards.
  at::Tensor take(size_t i);
  /// The tensor, for an operator that writes its gradient into it; the slot is empty afterwards.
  at::Tensor overwrite(size_t i);

  /// What the slot holds now, undefined if that is nothing.
  const at::Tensor& held(size_t i) const { return slots_[i].tensor; }

  /// For SlotSource: the slot drops its tensor and waits for the source, until fill() is called.
  void wait_for(size_t i, std::shared_ptr<SlotSource> source);
  void fill(size_t i, const at::Tensor& x);
  /// For SlotSource: the source reads this tensor, which must not be overwritten before it ran.
  void is_read_by(size_t i, std::weak_ptr<SlotSource> source) {
    slots_[i].reader = std::move(source);
  }
  /// Hands slot i to the hooks of this thread.
  void offer(size_t i);

 private:
  struct Slot {
    at::Tensor tensor;
    std::shared_ptr<void> token;
    std::shared_ptr<SavedHooks> hooks;
    std::shared_ptr<SlotSource> source;
    std::weak_ptr<SlotSource> reader;
  };
  const char* name_;
  std::vector<Slot> slots_;
};

/// What the operators of a forward pass keep. Holds nothing itself.
class SavedTensors {
 public:
  struct Use {
    std::string name; ///< of the operator
    int64_t bytes = 0;
  };
  /// In the order of the forward pass, one entry for each operator that keeps a tensor now. A
  /// storage counts once, whole, for the first operator that keeps it; those of `given` do not
  /// count.
  std::vector<Use> list(const std::vector<at::Tensor>& given = {}) const;
  int64_t bytes(const std::vector<at::Tensor>& given = {}) const;

  void add(std::weak_ptr<const Saved> saved) { operators_.push_back(std::move(saved)); }
  /// What `other` lists, behind this.
  void add(const SavedTensors& other);

 private:
  std::vector<std::weak_ptr<const Saved>> operators_;
};

/// Operators that this thread records while the object lives are put into `account`.
class SavedTensorsScope {
 public:
  explicit SavedTensorsScope(SavedTensors& account);
  ~SavedTensorsScope();
  SavedTensorsScope(const SavedTensorsScope&) = delete;

 private:
  SavedTensors* previous_;
};

/// Slots for `tensors`, known to the hooks and the account of this thread.
std::shared_ptr<Saved> save(const char* name, std::vector<at::Tensor> tensors,
                            const std::vector<at::Tensor>& outputs = {});

} // namespace pentatron::nn
