/// Which entry of an operator's list runs for each class of arguments. Without a selection the
/// first entry that does not refuse runs.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/kernels/selection/op_class.h"

namespace pentatron::kernels {

/// A value: class name -> entry name. Names that this program does not know stay in it, so that a
/// text of another version keeps its meaning there.
class Selection {
 public:
  using Choices = std::map<std::string, std::string>;
  Selection() = default;
  explicit Selection(Choices choices) : choices_(std::move(choices)) {}

  /// A JSON object with one line for each choice.
  std::string text() const;
  /// Throws DataError for anything else than such an object; `origin` names it in messages.
  static Selection parse(std::string_view text, std::string_view origin);

  void set(OpClass c, std::string_view entry) { choices_[class_name(c)] = entry; }
  /// The entry of a class; empty if none is chosen.
  std::string find(OpClass c) const;
  const Choices& choices() const { return choices_; }
  bool operator==(const Selection&) const = default;

 private:
  Choices choices_;
};

/// What is wrong with a choice on this machine, one sentence for each.
std::vector<std::string> unusable_choices(const Selection& selection);

/// From now on `selection` decides in all threads of this process; the choices that this machine
/// cannot run do not count, and list order does for their classes. Calls that run meanwhile finish
/// with the entry they began with.
void use_selection(const Selection& selection);
/// Back to list order.
void clear_selection();

/// The classes that calls of any thread ask for while one of these lives, for tests; one at a time.
class AskedClasses {
 public:
  AskedClasses();
  ~AskedClasses();
  AskedClasses(const AskedClasses&) = delete;
  AskedClasses& operator=(const AskedClasses&) = delete;
  std::vector<OpClass> all() const;
};

namespace selection_detail {
/// Position in the operator's list, by OpClass::index(); -1: list order.
using Table = std::array<int8_t, kNumOpClasses>;
extern constinit std::atomic<const Table*> current;
/// Whether calls note their classes, and which were noted, by OpClass::index().
extern constinit std::atomic<bool> noting;
extern constinit std::array<std::atomic<bool>, kNumOpClasses> asked;
} // namespace selection_detail

/// Position of the chosen entry in the operator's list, or -1.
inline int chosen_position(OpClass c) {
  if (selection_detail::noting.load(std::memory_order_relaxed)) [[unlikely]]
    selection_detail::asked[c.index()].store(true, std::memory_order_relaxed);
  const selection_detail::Table* table = selection_detail::current.load(std::memory_order_acquire);
  return table == nullptr ? -1 : (*table)[c.index()];
}

} // namespace pentatron::kernels
