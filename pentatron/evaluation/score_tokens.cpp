#include "pentatron/evaluation/score_tokens.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/kernels/embedding/embedding.h"
#include "pentatron/nn/context.h"
#include "pentatron/parallel/pipeline/runtime.h"
#include "pentatron/parallel/pipeline/schedule/forward_only.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"

namespace pentatron::evaluation {

namespace {

constexpr int64_t kIgnored = -100;

using Batch = std::vector<size_t>; ///< numbers of sequences

int64_t inputs_of(const ScoredTokens& sequence) {
  return std::ssize(sequence.tokens) - 1;
}

std::vector<Batch> make_batches(const std::vector<ScoredTokens>& sequences, int64_t batch_tokens) {
  Batch order(sequences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(
      order, [&](size_t a, size_t b) { return inputs_of(sequences[a]) > inputs_of(sequences[b]); });
  std::vector<Batch> batches;
  int64_t tokens = 0;
  for (const size_t i : order) {
    tokens += inputs_of(sequences[i]);
    if (batches.empty() || tokens > batch_tokens) {
      batches.emplace_back();
      tokens = inputs_of(sequences[i]);
    }
    batches.back().push_back(i);
  }
  return batches;
}

class Scorer {
 public:
  Scorer(parallelize::ModelView model, const std::vector<ScoredTokens>& sequences)
      : model_(std::move(model)), sequences_(sequences),
        schedule_(pipeline::lower(pipeline::one_pass(model_.places.rank_of_stage))),
        runtime_(parallelize::chunks_of(model_.model), model_.store, model_.places.pp,
                 parallelize::boundaries_of(model_.model, model_.places, model_.device)) {}

  /// Writes the scores of a batch where the last stage is.
  void run(const Batch& batch, double* scores) {
    int64_t tokens = 0;
    const nn::Microbatch microbatch = make_microbatch(batch, tokens);
    nn::StepState state;
    nn::PassResults results;
    pipeline::RunOptions options;
    options.wanted = {.loss = false, .token_scores = true};
    options.results = &results;
    runtime_.run(schedule_, {microbatch}, state, options);
    if (model_.places.rank_of_stage.back() != model_.places.pp.rank() || scores == nullptr) return;
    const at::Tensor log_probs = results.at(nn::kTokenLogProbs).cpu().to(at::kDouble).contiguous();
    const at::Tensor hits = results.at(nn::kTokenHits).cpu().contiguous();
    const std::vector<int64_t>& starts = microbatch.layouts[0].sample_starts;
    for (size_t b = 0; b < batch.size(); ++b) {
      const int64_t end = starts[b + 1];
      double sum = 0;
      bool greedy = true;
      for (int64_t t = end - sequences_[batch[b]].predicted; t < end; ++t) {
        sum += log_probs.const_data_ptr<double>()[t];
        greedy = greedy && hits.const_data_ptr<bool>()[t];
      }
      scores[2 * batch[b]] = sum;
      scores[2 * batch[b] + 1] = greedy ? 1 : 0;
    }
  }

 private:
  nn::Microbatch make_microbatch(const Batch& batch, int64_t& tokens) const {
    const parallel::TensorParallel& tp = model_.model.tensor_parallel();
    std::vector<int64_t> starts = {0};
    std::vector<uint64_t> numbers;
    int64_t longest = 0;
    for (const size_t i : batch) {
      numbers.push_back(numbers.size());
      const int64_t length = inputs_of(sequences_[i]);
      starts.push_back(starts.back() + length);
      longest = std::max(longest, length);
    }
    // Tokens divide among the ranks of sequence parallelism.
    if (const int64_t rest = tp.sequence ? starts.back() % tp.size() : 0; rest != 0) {
      numbers.push_back(numbers.size());
      starts.push_back(starts.back() + tp.size() - rest);
      longest = std::max<int64_t>(longest, tp.size() - rest);
    }
    tokens = starts.back();
    const at::Tensor ids = at::zeros({tokens}, at::kLong);
    const at::Tensor labels = at::full({tokens}, kIgnored, at::kLong);
    for (size_t b = 0; b < batch.size(); ++b) {
      const ScoredTokens& sequence = sequences_[batch[b]];
      std::copy(sequence.tokens.begin(), sequence.tokens.end() - 1,
                ids.mutable_data_ptr<int64_t>() + starts[b]);
      std::copy(sequence.tokens.end() - sequence.predicted, sequence.tokens.end(),
                labels.mutable_data_ptr<int64_t>() + starts[b + 1] - sequence.predicted);
    }
    nn::SequenceLayout layout =
        nn::SequenceLayout::ragged(longest, std::move(numbers), starts, starts, model_.device);
    if (tp.sequence) layout.cut_outer(tp.rank(), tp.size());
    return {.fields = {{"input_ids", ids.to(model_.device)}, {"labels", labels.to(model_.device)}},
            .layouts = {std::move(layout)}};
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
      raise<DataError>("the tokenizer gives token {}, outside the model's vocabulary of {}",
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
  const std::vector<Batch> batches = make_batches(sequences, options.batch_tokens);
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
      finished += std::ssize(batches[i]);
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
