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
#include "pentatron/trainer/evaluation.h"
#include "pentatron/trainer/failed_saves.h"
#include "pentatron/trainer/metrics/scores.h"
#include "pentatron/trainer/run_folders.h"

namespace pentatron::trainer {

enum class StopReason : uint8_t { kFinished, kSignal, kDuration, kExitInterval };

struct TrainReport {
  StopReason reason = StopReason::kFinished;
  int signal = 0;                        ///< of StopReason::kSignal
  int64_t iterations = 0;                ///< that the model has had
  int64_t steps = 0;                     ///< of these, made by this process
  bool trained = false;                  ///< some step updated the weights
  std::optional<double> last_loss;       ///< of the last step that had one; none: there was none
  Scores last_terms;                     ///< the losses that it is the sum of, if several
  std::optional<Evaluation> validation;  ///< the last one; none: without targets too
  std::optional<double> unigram_entropy; ///< of the training text, in nats a token
  std::filesystem::path metrics, plot, checkpoint; ///< empty: not written
  /// Of the last save, with checkpoint.on_error=continue: what failed (an export only on rank 0).
  std::optional<FailedSave> unsaved;
};

struct TrainerOptions {
  bool progress_bar = false; ///< with logger.progress=auto, if the console is a terminal
  std::string version = {};  ///< of the program, for run.json
  /// Read the figures of several steps together on a CPU, too (step_queue.h): for tests.
  bool late_figures = false;
};

/// A run with a valid configuration. The constructor opens the data, builds the model and loads the
/// checkpoint.
class Trainer {
 public:
  /// Takes the run's folders if they are not given. Collective over `world`. Throws CommError if
  /// the ranks' configurations differ.
  explicit Trainer(Config config, const comm::Group& world = {},
                   std::unique_ptr<RunFolders> folders = nullptr);
  ~Trainer();

  /// Runs to the last iteration, or until a signal, a time limit or a step that is not finite. If
  /// no step is left, it only evaluates (with train.eval_interval). Throws Error with the name of
  /// the first layer that was not finite if train.on_nan requires a stop.
  TrainReport run(const TrainerOptions& options = {});

  parallelize::ModelView model();
  /// The position of this rank in the layout, the stages and the order of their passes, and the
  /// state that this rank updates.
  std::string describe() const;
  /// Calls `visit` for each parameter of this rank while its complete value is available.
  /// Collective.
  void read_values(const std::function<void(const nn::Param&)>& visit);
  const Config& config() const;
  const data::Tokenizer& tokenizer() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// After this call, SIGINT, SIGTERM and SIGHUP (unless that is ignored, as under nohup) make a
/// running Trainer save and return; a second SIGINT or SIGTERM ends the program immediately. The
/// handler writes `answer` (null: nothing) to standard error at the first signal.
void install_signal_handlers(const char* answer = nullptr);

/// Such an answer, for a run that saves or does not.
const char* stopping_text(bool saves);

} // namespace pentatron::trainer
