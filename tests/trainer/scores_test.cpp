#include "pentatron/trainer/metrics/scores.h"

#include <array>
#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "pentatron/trainer/evaluation.h"

namespace pentatron::trainer {
namespace {

std::map<std::string, double> by_name(const Scores& scores) {
  return {scores.begin(), scores.end()};
}

TEST(Scores, OfTwoClassesAreThoseOfTheTableOfConfusion) {
  // 5 right ones, 1 false alarm, 2 misses, 4 right zeros.
  std::vector<Prediction> predictions;
  const auto add = [&](int count, double predicted, double label) {
    for (int i = 0; i < count; ++i) predictions.push_back({predicted, label});
  };
  add(5, 1, 1);
  add(1, 1, 0);
  add(2, 0, 1);
  add(4, 0, 0);
  const auto scores = by_name(class_scores(predictions, 2));
  EXPECT_DOUBLE_EQ(scores.at("accuracy"), 9.0 / 12);
  EXPECT_DOUBLE_EQ(scores.at("f1"), 2 * 5.0 / (2 * 5 + 1 + 2));
  EXPECT_DOUBLE_EQ(scores.at("matthews"),
                   (5 * 4 - 1 * 2) / std::sqrt((5.0 + 1) * (5 + 2) * (4 + 1) * (4 + 2)));
}

TEST(Scores, OfManyClassesAreMeansAndWithoutMeaningZero) {
  const std::vector<Prediction> predictions = {{0, 0}, {1, 1}, {1, 2}, {2, 2}, {2, 2}, {0, 1}};
  const auto scores = by_name(class_scores(predictions, 4)); // class 3 never occurs
  EXPECT_DOUBLE_EQ(scores.at("accuracy"), 4.0 / 6);
  EXPECT_DOUBLE_EQ(scores.at("f1"), (2.0 / 3 + 2.0 / 4 + 4.0 / 5) / 3);
  // Gorodkin: (4 * 6 - (2 * 1 + 2 * 2 + 2 * 3)) / sqrt((36 - 12) (36 - 14)).
  EXPECT_DOUBLE_EQ(scores.at("matthews"), 12 / std::sqrt(24.0 * 22));
  const std::vector<Prediction> one = {{0, 0}, {0, 0}};
  EXPECT_EQ(by_name(class_scores(one, 2)).at("matthews"), 0);
  EXPECT_EQ(by_name(class_scores(one, 2)).at("f1"), 0);
  EXPECT_TRUE(class_scores({}, 2).empty());
}

TEST(Scores, OfNumbersAreCorrelations) {
  const std::vector<Prediction> predictions = {{1, 2}, {2, 4}, {3, 5}, {4, 4}, {5, 5}};
  const auto scores = by_name(number_scores(predictions));
  EXPECT_NEAR(scores.at("pearson"), 6 / std::sqrt(10 * 6.0), 1e-15);
  // Ranks 1 2 3 4 5 and 1 2.5 4.5 2.5 4.5.
  EXPECT_NEAR(scores.at("spearman"), 7 / std::sqrt(10 * 9.0), 1e-15);
  const std::vector<Prediction> flat = {{1, 2}, {1, 4}};
  EXPECT_TRUE(std::isnan(by_name(number_scores(flat)).at("pearson")));
  EXPECT_TRUE(number_scores(std::span(predictions).first(1)).empty());
}

TEST(Scores, LastBitsDoNotRankPredictions) {
  // Two texts twice each, in other batches: of one, the first is larger, of the other, the second.
  const double bit = std::ldexp(1.0, -23);
  const std::vector<Prediction> exact = {{1, 3}, {1, 5}, {2, 4}, {2, 7}, {-3, 1}};
  std::vector<Prediction> noisy = exact;
  noisy[0].predicted += bit;
  noisy[3].predicted += 2 * bit;
  std::vector<Prediction> other = exact;
  other[1].predicted += bit;
  other[2].predicted -= 2 * bit;
  // Ranks 2.5 2.5 4.5 4.5 1 and 2 4 3 5 1.
  const double expected = 7 / std::sqrt(9.0 * 10);
  for (const auto& predictions : {exact, noisy, other})
    EXPECT_NEAR(by_name(number_scores(predictions)).at("spearman"), expected, 1e-15);
  // What differs by more is no tie.
  noisy[0].predicted = 1 + 1e-4;
  // Ranks 3 2 4.5 4.5 1.
  EXPECT_NEAR(by_name(number_scores(noisy)).at("spearman"), 6 / std::sqrt(9.5 * 10), 1e-15);
  // Nor are many values that are close to their neighbours.
  std::vector<Prediction> dense;
  for (int i = 0; i < 1000; ++i) dense.push_back({1 + i * 5e-6, i * 1.0});
  EXPECT_GT(by_name(number_scores(dense)).at("spearman"), 0.99);
}

TEST(Evaluations, AreTheWeightedMeansOfTheTerms) {
  models::ModelSpec spec;
  spec.losses = {{.name = "lm loss", .labels = "a", .accuracy = true},
                 {.name = "sop loss", .labels = "b", .weight = 0.5}};
  EvaluationSums sums;
  sums += {.terms = {{6, 2, 1}, {0, 0, 0}}, .predictions = {}};
  sums += {.terms = {{3, 1, 1}, {4, 4, 0}}, .predictions = {}};
  const std::optional<Evaluation> result = evaluated(spec, sums, 2);
  ASSERT_TRUE(result);
  EXPECT_DOUBLE_EQ(result->loss.value(), 3 + 0.5 * 1);
  EXPECT_EQ(result->figures, (Scores{{"lm_loss", 3}, {"sop_loss", 1}, {"lm_accuracy", 2.0 / 3}}));
  EXPECT_EQ(figure_names(spec),
            (std::vector<std::string>{"loss", "lm_loss", "lm_accuracy", "sop_loss"}));
  EXPECT_FALSE(evaluated(spec, {.terms = {{0, 0, 0}, {0, 0, 0}}, .predictions = {}}, 2));
  // A sum that lacks a term would look better than all others.
  const auto part = evaluated(spec, {.terms = {{6, 2, 1}, {0, 0, 0}}, .predictions = {}}, 2);
  EXPECT_FALSE(part.value().loss);
  EXPECT_EQ(part->figures, (Scores{{"lm_loss", 3}, {"lm_accuracy", 0.5}}));
  EXPECT_FALSE(mean_of({*result, *part}).loss);
  EXPECT_EQ(mean_of({*result, *result}).loss, result->loss);
  spec.losses[1].evaluated = false; // training alone has it
  EXPECT_EQ(evaluated(spec, {.terms = {{6, 2, 1}, {0, 0, 0}}, .predictions = {}}, 2)->loss, 3);
  EXPECT_TRUE(lower_is_better("validation_lm_loss"));
  EXPECT_FALSE(lower_is_better("validation_accuracy"));
}

/// The C library's generator of numbers, as rand() has it in the C standard.
class Numbers {
 public:
  int64_t operator()(int64_t below) {
    state_ = (state_ * 1103515245 + 12345) % (int64_t{1} << 31);
    return (state_ >> 16) % below;
  }

 private:
  int64_t state_ = 12345;
};

/// The figures are those of scikit-learn 1.9 (F1 of class 1, of several classes with
/// average="macro") and SciPy 1.17 for the same numbers.
TEST(Scores, AreThoseOfScikitLearnAndSciPy) {
  Numbers next;
  const std::map<int64_t, std::array<double, 3>> expected = {
      {2, {0.86, 0.8478260869565217, 0.7188921727122976}},
      {3, {0.785, 0.7850465989706495, 0.6758801703622415}}};
  for (const auto& [classes, figures] : expected) {
    std::vector<Prediction> predictions(200);
    for (Prediction& p : predictions) p.predicted = static_cast<double>(next(classes));
    for (Prediction& p : predictions)
      p.label = next(3) != 0 ? p.predicted : static_cast<double>(next(classes));
    const auto scores = by_name(class_scores(predictions, classes));
    EXPECT_NEAR(scores.at("accuracy"), figures[0], 1e-14);
    EXPECT_NEAR(scores.at("f1"), figures[1], 1e-14);
    EXPECT_NEAR(scores.at("matthews"), figures[2], 1e-14);
  }
  std::vector<Prediction> predictions(200); // with ties
  for (Prediction& p : predictions) p.label = static_cast<double>(next(26)) / 5;
  for (Prediction& p : predictions) p.predicted = p.label * 0.5 + static_cast<double>(next(16)) / 4;
  const auto scores = by_name(number_scores(predictions));
  EXPECT_NEAR(scores.at("pearson"), 0.48264568361557453, 1e-13);
  EXPECT_NEAR(scores.at("spearman"), 0.4548725409610152, 1e-13);
}

} // namespace
} // namespace pentatron::trainer
