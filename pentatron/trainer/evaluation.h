/// Sums of an evaluation over batches, and the metrics computed from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pentatron/models/model_spec.h"
#include "pentatron/trainer/metrics/scores.h"

namespace pentatron::trainer {

/// Over all ranks, by the model's loss terms.
struct EvaluationSums {
  struct Term {
    double loss_sum = 0;
    int64_t targets = 0;
    double hits = 0; ///< targets for which the best guess was right
  };
  std::vector<Term> terms;
  std::vector<Prediction> predictions; ///< of samples

  EvaluationSums& operator+=(const EvaluationSums& other);
};

/// The loss, and named figures: losses of the terms if there are several (lm_loss), shares of right
/// guesses (lm_accuracy), scores of samples (accuracy, f1, pearson).
struct Evaluation {
  std::optional<double> loss; ///< none: one of the terms that it sums has no target
  Scores figures;
};

/// Whether evaluation counts more than losses.
bool wants_scores(const models::ModelSpec& spec);

/// The loss and the losses of the terms alone.
std::optional<Evaluation> losses_of(const models::ModelSpec& spec, const EvaluationSums& sums);
/// None if not one sample has a target. `classes`: of SampleScores::kClasses.
std::optional<Evaluation> evaluated(const models::ModelSpec& spec, const EvaluationSums& sums,
                                    int64_t classes);
/// Figure by figure the mean, of those that all have.
Evaluation mean_of(const std::vector<Evaluation>& parts);

/// Names of all figures that an evaluation of such a model can have, "loss" among them.
std::vector<std::string> figure_names(const models::ModelSpec& spec);
/// Whether a smaller value of a figure is better.
bool lower_is_better(const std::string& figure);

/// The losses of a step's terms with their names, of those that have targets; empty if the loss is
/// that of one term.
Scores named_terms(const models::ModelSpec& spec, const std::vector<std::optional<double>>& losses);

/// Like named_terms(), and includes auxiliary terms and terms that only training has.
Scores all_terms(const models::ModelSpec& spec, const std::vector<std::optional<double>>& losses,
                 const std::vector<std::optional<double>>& auxiliary);

/// "lm_loss" of the term "lm loss".
std::string figure_name(const std::string& term);

} // namespace pentatron::trainer
