#include "pentatron/trainer/evaluation.h"

#include <algorithm>

namespace pentatron::trainer {

namespace {

constexpr const char* kLoss = "loss";

/// "lm_accuracy" of the term "lm loss".
std::string accuracy_name(const std::string& term) {
  return term.substr(0, term.find(' ')) + "_accuracy";
}

/// Samples that are scored have a better name for it.
bool shows_accuracy(const models::ModelSpec& spec, const models::LossTerm& term) {
  return term.accuracy && spec.scores == models::SampleScores::kNone;
}

} // namespace

std::string figure_name(const std::string& term) {
  std::string name = term;
  std::ranges::replace(name, ' ', '_');
  return name;
}

EvaluationSums& EvaluationSums::operator+=(const EvaluationSums& other) {
  terms.resize(std::max(terms.size(), other.terms.size()));
  for (size_t i = 0; i < other.terms.size(); ++i) {
    terms[i].loss_sum += other.terms[i].loss_sum;
    terms[i].targets += other.terms[i].targets;
    terms[i].hits += other.terms[i].hits;
  }
  predictions.insert(predictions.end(), other.predictions.begin(), other.predictions.end());
  return *this;
}

bool wants_scores(const models::ModelSpec& spec) {
  return spec.scores != models::SampleScores::kNone ||
         std::ranges::any_of(spec.losses, &models::LossTerm::accuracy);
}

std::optional<Evaluation> losses_of(const models::ModelSpec& spec, const EvaluationSums& sums) {
  Evaluation result;
  bool any = false, whole = true;
  double total = 0;
  for (size_t i = 0; i < sums.terms.size(); ++i) {
    const EvaluationSums::Term& term = sums.terms[i];
    any = any || term.targets > 0;
    whole = whole && (term.targets > 0 || !spec.losses[i].evaluated);
    if (term.targets == 0) continue;
    const double mean = term.loss_sum / static_cast<double>(term.targets);
    total += spec.losses[i].weight * mean;
    if (spec.num_evaluated() > 1)
      result.figures.emplace_back(figure_name(spec.losses[i].name), mean);
  }
  if (whole) result.loss = total;
  return any ? std::optional(std::move(result)) : std::nullopt;
}

std::optional<Evaluation> evaluated(const models::ModelSpec& spec, const EvaluationSums& sums,
                                    int64_t classes) {
  std::optional<Evaluation> result = losses_of(spec, sums);
  if (!result) return result;
  for (size_t i = 0; i < sums.terms.size(); ++i) {
    const EvaluationSums::Term& term = sums.terms[i];
    if (term.targets > 0 && shows_accuracy(spec, spec.losses[i]))
      result->figures.emplace_back(accuracy_name(spec.losses[i].name),
                                   term.hits / static_cast<double>(term.targets));
  }
  const Scores scores =
      spec.scores == models::SampleScores::kClasses   ? class_scores(sums.predictions, classes)
      : spec.scores == models::SampleScores::kNumbers ? number_scores(sums.predictions)
                                                      : Scores();
  result->figures.insert(result->figures.end(), scores.begin(), scores.end());
  return result;
}

Evaluation mean_of(const std::vector<Evaluation>& parts) {
  Evaluation mean;
  const auto n = static_cast<double>(parts.size());
  double loss = 0;
  for (const Evaluation& part : parts) loss += part.loss.value_or(0) / n;
  if (std::ranges::all_of(parts, [](const Evaluation& part) { return part.loss.has_value(); }))
    mean.loss = loss;
  for (const auto& [name, first] : parts.front().figures) {
    double sum = 0;
    size_t found = 0;
    for (const Evaluation& part : parts) {
      for (const auto& [other, value] : part.figures) {
        if (other != name) continue;
        sum += value;
        ++found;
      }
    }
    if (found == parts.size()) mean.figures.emplace_back(name, sum / n);
  }
  return mean;
}

Scores named_terms(const models::ModelSpec& spec,
                   const std::vector<std::optional<double>>& losses) {
  Scores named;
  for (size_t i = 0; i < losses.size() && spec.num_evaluated() > 1; ++i)
    if (losses[i] && spec.losses[i].evaluated) named.emplace_back(spec.losses[i].name, *losses[i]);
  return named;
}

Scores all_terms(const models::ModelSpec& spec, const std::vector<std::optional<double>>& losses,
                 const std::vector<std::optional<double>>& auxiliary) {
  Scores all = named_terms(spec, losses);
  for (size_t i = 0; i < losses.size(); ++i)
    if (losses[i] && !spec.losses[i].evaluated) all.emplace_back(spec.losses[i].name, *losses[i]);
  for (size_t i = 0; i < auxiliary.size(); ++i)
    if (auxiliary[i]) all.emplace_back(spec.auxiliary[i].name, *auxiliary[i]);
  return all;
}

std::vector<std::string> figure_names(const models::ModelSpec& spec) {
  std::vector<std::string> names = {kLoss};
  for (const models::LossTerm& term : spec.losses) {
    if (!term.evaluated) continue;
    if (spec.num_evaluated() > 1) names.push_back(figure_name(term.name));
    if (shows_accuracy(spec, term)) names.push_back(accuracy_name(term.name));
  }
  if (spec.scores == models::SampleScores::kClasses)
    names.insert(names.end(), {"accuracy", "f1", "matthews"});
  if (spec.scores == models::SampleScores::kNumbers)
    names.insert(names.end(), {"pearson", "spearman"});
  return names;
}

bool lower_is_better(const std::string& figure) {
  return figure.ends_with(kLoss);
}

} // namespace pentatron::trainer
