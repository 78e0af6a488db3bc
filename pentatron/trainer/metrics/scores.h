/// Metrics of per-sample predictions (classification, regression), in addition to the loss.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pentatron::trainer {

struct Prediction {
  double predicted = 0, label = 0;
};

/// Names and values, in the order in which they are shown.
using Scores = std::vector<std::pair<std::string, double>>;

/// Of classes 0 ... classes - 1: accuracy; f1, of class 1 if there are two classes, else the mean
/// over classes that occur; matthews, the correlation coefficient (Gorodkin 2004 for more than
/// two). A score without a meaning (0 / 0) is 0, as in scikit-learn. Empty if there are no
/// predictions.
Scores class_scores(std::span<const Prediction> predictions, int64_t classes);

/// Of numbers: pearson and spearman; NaN where one side is constant. Empty for fewer than two
/// predictions. In spearman, ties have their mean rank; predictions are tied up to 1e-5 of the
/// largest one, so that the last bits, which differ between layouts, do not decide.
Scores number_scores(std::span<const Prediction> predictions);

} // namespace pentatron::trainer
