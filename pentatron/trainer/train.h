/// The training loop of one rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "pentatron/data/dataset.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

enum class StopReason : uint8_t { kFinished, kSignal, kDuration, kExitInterval };

struct TrainReport {
  StopReason reason = StopReason::kFinished;
  int64_t iterations = 0;
  std::optional<double> last_loss;       ///< of the last step that had one; none: there was none
  std::optional<double> validation_loss; ///< of the last evaluation; none: without targets too
  std::optional<double> unigram_entropy; ///< of the training text, in nats a token
  std::filesystem::path metrics, plot, checkpoint; ///< empty: not written
};

struct RunOptions {
  bool progress_bar = false; ///< on standard error, if that is a terminal
};

/// Everything a run needs, from a checked configuration; construction opens data, builds the model
/// and loads what is to be loaded.
class Trainer {
 public:
  /// Collective over `world`. Throws CommError if the ranks' configurations differ.
  explicit Trainer(Config config, const comm::Group& world = {});
  ~Trainer();

  /// Runs to the end of the configuration, or to a signal, a time limit or a step that is not
  /// finite; where no step is left, it only evaluates (with train.eval_interval). Throws Error
  /// (naming the first layer that was not finite) where the rules of train.on_nan say stop.
  TrainReport run(const RunOptions& options = {});

  parallelize::ModelView model();
  /// This rank's place, the stages and the order of their passes, the pieces of state it updates.
  std::string describe() const;
  /// Calls `visit` for each of this rank's parameters while it has its whole value. Collective.
  void read_values(const std::function<void(const nn::Param&)>& visit);
  const Config& config() const;
  const data::Tokenizer& tokenizer() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// From now on SIGINT and SIGTERM ask a running Trainer to save and return; a second one ends the
/// program at once.
void install_signal_handlers();

} // namespace pentatron::trainer
