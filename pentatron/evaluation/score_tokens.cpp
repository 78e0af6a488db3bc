#include "pentatron/evaluation/score_tokens.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <map>
#include <span>

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/kernels/embedding/embedding.h"
#include "pentatron/nn/context.h"
#include "pentatron/parallel/pipeline/runtime.h"
#include "pentatron/parallel/pipeline/schedule/forward_only.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"

namespace pentatron::evaluation {

namespace {

/// Sequences that differ in their last token at most, and are read once.
struct Reading {
  const ScoredTokens* first = nullptr;
  std::vector<size_t> sequences; ///< their numbers

  int64_t length() const { return std::ssize(first->tokens) - 1; }
};

/// From the longest to the shortest.
std::vector<Reading> make_readings(const std::vector<ScoredTokens>& sequences) {
  std::map<std::vector<int64_t>, size_t> known; // by what is read
  std::vector<Reading> readings;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const ScoredTokens& sequence = sequences[i];
    const auto [place, is_new] =
        known.try_emplace({sequence.tokens.begin(), sequence.tokens.end() - 1}, readings.size());
    if (is_new) readings.push_back({.first = &sequence, .sequences = {}});
    readings[place->second].sequences.push_back(i);
  }
  std::ranges::stable_sort(readings, std::ranges::greater(), &Reading::length);
  return readings;
}

using ReadingBatch = std::span<const Reading>;

std::vector<ReadingBatch> make_batches(const std::vector<Reading>& readings, int64_t batch_tokens) {
  std::vector<ReadingBatch> batches;
  size_t begin = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < readings.size(); ++i) {
    tokens += readings[i].length();
    if (i > begin && tokens > batch_tokens) {
      batches.push_back(ReadingBatch(readings).subspan(begin, i - begin));
      begin = i;
      tokens = readings[i].length();
    }
  }
  batches.push_back(ReadingBatch(readings).subspan(begin));
  return batches;
}

/// One forward pass, and whose labels it scores in which rows.
struct Pass {
  nn::Microbatch batch;
  struct Scored {
    size_t sequence;
    int64_t row; ///< of its first label
  };
  at::Tensor rows, labels;
  std::vector<Scored> sequences;
};

class Scorer {
 public:
  Scorer(parallelize::ModelView model, const std::vector<ScoredTokens>& sequences)
      : model_(std::move(model)), sequences_(sequences),
        schedule_(pipeline::lower(pipeline::one_pass(model_.places.rank_of_stage))),
        runtime_(parallelize::chunks_of(model_.model), model_.store, model_.places.channels,
                 parallelize::boundaries_of(model_.model, model_.places, model_.device)) {}

  /// Writes the scores of a batch where the last stage is; null: nobody wants them.
  void run(ReadingBatch batch, double* scores) {
    const Pass pass = make_pass(batch);
    nn::StepState state;
    nn::PassResults results;
    pipeline::RunOptions options;
    options.wanted = {.loss = false, .scored_rows = pass.rows, .scored_labels = pass.labels};
    options.results = &results;
    runtime_.run(schedule_, {pass.batch}, state, options);
    if (model_.places.rank_of_stage.back() != model_.places.pp.rank() || scores == nullptr) return;
    const at::Tensor log_probs = results.at(nn::kTokenLogProbs).cpu().to(at::kDouble).contiguous();
    const at::Tensor hits = results.at(nn::kTokenHits).cpu().contiguous();
    for (const auto& [i, begin] : pass.sequences) {
      double sum = 0;
      bool greedy = true;
      for (int64_t row = begin; row < begin + sequences_[i].predicted; ++row) {
        sum += log_probs.const_data_ptr<double>()[row];
        greedy = greedy && hits.const_data_ptr<bool>()[row];
      }
      scores[2 * i] = sum;
      scores[2 * i + 1] = greedy ? 1 : 0;
    }
  }

 private:
  Pass make_pass(ReadingBatch batch) const {
    const parallel::TensorParallel& tp = model_.model.tensor_parallel();
    Pass pass;
    std::vector<int64_t> starts = {0}, ids, rows, labels;
    std::vector<uint64_t> numbers;
    for (const Reading& reading : batch) {
      ids.insert(ids.end(), reading.first->tokens.begin(), reading.first->tokens.end() - 1);
      numbers.push_back(numbers.size());
      starts.push_back(std::ssize(ids));
      // Equal sequences share their rows: rows of a product round by their place in it, and choices
      // that are equal must have equal scores.
      std::map<std::pair<int64_t, int64_t>, int64_t> known; // by last token and labels
      for (const size_t i : reading.sequences) {
        const ScoredTokens& sequence = sequences_[i];
        const auto [row_of, is_new] =
            known.try_emplace({sequence.tokens.back(), sequence.predicted}, std::ssize(rows));
        pass.sequences.push_back({i, row_of->second});
        if (!is_new) continue;
        labels.insert(labels.end(), sequence.tokens.end() - sequence.predicted,
                      sequence.tokens.end());
        for (int64_t row = starts.back() - sequence.predicted; row < starts.back(); ++row)
          rows.push_back(row);
      }
    }
    int64_t longest = batch.front().length();
    // Tokens divide among the ranks of sequence parallelism.
    if (const int64_t rest = tp.sequence ? starts.back() % tp.size() : 0; rest != 0) {
      numbers.push_back(numbers.size());
      starts.push_back(starts.back() + tp.size() - rest);
      longest = std::max<int64_t>(longest, tp.size() - rest);
      ids.resize(static_cast<size_t>(starts.back()));
    }
    nn::SequenceLayout layout =
        nn::SequenceLayout::ragged(longest, std::move(numbers), starts, starts, model_.device);
    if (tp.sequence) layout.cut_outer(tp.rank(), tp.size());
    const auto tensor = [&](const std::vector<int64_t>& values) {
      return at::tensor(values, at::kLong).to(model_.device);
    };
    pass.batch = {.fields = {{"input_ids", tensor(ids)}}, .layouts = {std::move(layout)}};
    pass.rows = tensor(rows);
    pass.labels = tensor(labels);
    return pass;
  }

  parallelize::ModelView model_;
  const std::vector<ScoredTokens>& sequences_;
  pipeline::Schedule schedule_;
  pipeline::Runtime runtime_;
};

void check(const std::vector<ScoredTokens>& sequences, int64_t vocab_size) {
  for (const ScoredTokens& sequence : sequences) {
    PT_DCHECK(sequence.predicted > 0 && sequence.predicted < std::ssize(sequence.tokens));
    const int64_t bad =
        kernels::first_bad_id(sequence.tokens.data(), std::ssize(sequence.tokens), vocab_size);
    if (bad >= 0)
      raise<DataError>(
          "the tokenizer produces token {}, which is outside the model's vocabulary of {} tokens",
          sequence.tokens[static_cast<size_t>(bad)], vocab_size);
  }
}

} // namespace

std::vector<TokenScore> score_tokens(parallelize::ModelView model,
                                     const std::vector<ScoredTokens>& sequences,
                                     const ScoringOptions& options) {
  if (sequences.empty()) return {};
  check(sequences, model.model.config().vocab_size);
  const parallelize::StagePlaces places = model.places;
  const std::vector<Reading> readings = make_readings(sequences);
  const std::vector<ReadingBatch> batches = make_batches(readings, options.batch_tokens);
  const at::Tensor scores = at::zeros({std::ssize(sequences), 2}, at::kDouble);
  Scorer scorer(std::move(model), sequences);
  const auto size = static_cast<size_t>(options.dp.size());
  const auto rank = static_cast<size_t>(options.dp.rank());
  int64_t finished = 0;
  // Every rank makes the same number of passes: experts and sharded parameters lie on several.
  for (size_t first = 0; first < batches.size(); first += size) {
    const bool own = first + rank < batches.size();
    scorer.run(batches[own ? first + rank : first], own ? scores.data_ptr<double>() : nullptr);
    for (size_t i = first; i < std::min(batches.size(), first + size); ++i)
      for (const Reading& reading : batches[i]) finished += std::ssize(reading.sequences);
    if (options.done) options.done(finished);
  }
  if (places.pp.size() > 1) comm::broadcast_(scores, places.rank_of_stage.back(), places.pp);
  comm::all_reduce_(scores, comm::ReduceOp::kSum, options.dp);
  std::vector<TokenScore> result(sequences.size());
  for (size_t i = 0; i < result.size(); ++i) {
    const double* row = scores.const_data_ptr<double>() + 2 * i;
    result[i] = {.loglikelihood = row[0], .greedy = row[1] != 0};
  }
  return result;
}

} // namespace pentatron::evaluation
