/// The context of a forward pass: the shape of the batch, the addresses of its samples, and where
/// weight gradients go.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/kernels/attention/attention_pair.h"
#include "pentatron/nn/adapter.h"
#include "pentatron/nn/kv_cache.h"
#include "pentatron/nn/param.h"
#include "pentatron/nn/recomputed_parts.h"

namespace pentatron::nn {

/// Positions [begin, end) of a sample.
struct TokenRange {
  int64_t begin = 0, end = 0;
};

/// Places [begin, begin + size) of a sample.
struct SampleChunk {
  int64_t sample = 0, begin = 0, size = 0;
};

/// Activations are [tokens, hidden], sample-major; this describes which tokens belong together.
struct SequenceLayout {
  int64_t batch = 0;    ///< samples
  int64_t sequence = 0; ///< tokens of a sample; of which fewer are here if padding was removed
  /// Token offsets at which samples begin, and the total at the end [batch + 1]. The tokens of a
  /// sample have the places 0, 1, ... in it.
  std::vector<int64_t> sample_starts;
  /// Token offsets at which documents begin, and the total at the end. Attention never crosses
  /// them. Without packing: every sample is one document.
  std::vector<int64_t> document_starts;
  /// The real tokens of each sample [batch], or empty: all are. The others are padding: computed
  /// like real ones, but seen by no query.
  std::vector<TokenRange> real;
  at::Tensor positions;             ///< [tokens] int32, on the model's device
  bool positions_given = false;     ///< with the data; else they count from 0
  std::vector<uint64_t> sample_ids; ///< [batch], global
  at::Tensor row_ids; ///< [tokens] int64: sample id and position in the sample, the address of
                      ///< dropout masks

  /// Context parallel: the layout of all tokens of these samples, of which this rank has the
  /// chunks, one behind the other; null: it has all. Documents are those of `whole`;
  /// places, also of real tokens, those in the whole samples.
  std::shared_ptr<const SequenceLayout> whole;
  std::vector<SampleChunk> chunks;

  /// Sequence parallel: between split layers this rank holds tokens [outer_begin, outer_begin +
  /// outer_size) only; outer_size < 0: all.
  int64_t outer_begin = 0, outer_size = -1;

  int64_t tokens() const { return sample_starts.empty() ? 0 : sample_starts.back(); }
  int64_t outer_tokens() const { return outer_size < 0 ? tokens() : outer_size; }
  /// The number of the sample that has the token.
  size_t sample_of(int64_t token) const;
  /// Of every token. [tokens] int64
  at::Tensor sample_numbers() const;
  /// Which tokens are not padding [tokens] bool; undefined: all.
  at::Tensor real_tokens() const;
  /// The outer tokens' part of a tensor [tokens, ...].
  at::Tensor outer(const at::Tensor& per_token) const;
  /// What self-attention works on: the tokens of a document see its real ones.
  std::vector<kernels::AttentionPair> self_attention() const;
  /// These pairs, reduced to the queries that are not padding.
  std::vector<kernels::AttentionPair>
  with_real_queries(std::vector<kernels::AttentionPair> pairs) const;
  /// What cross-attention works on: the tokens of a document see the real ones of the document with
  /// its number in `memory`. Without packing, a sample is a document. Throws ShapeError if the
  /// layouts do not have the same number of samples, and of documents in each.
  std::vector<kernels::AttentionPair> cross_attention(const SequenceLayout& memory) const;

  /// Gives every one of `ranks` an equal part. Throws ShapeError if the tokens do not divide.
  void cut_outer(int rank, int ranks);

  /// One document per sample, positions 0 .. sequence - 1.
  static SequenceLayout dense(int64_t batch, int64_t sequence, std::vector<uint64_t> sample_ids,
                              at::Device device);
  /// Samples of different lengths, up to `sequence`; positions are places in the sample. Both lists
  /// of starts as above; each sample begins a document.
  static SequenceLayout ragged(int64_t sequence, std::vector<uint64_t> sample_ids,
                               std::vector<int64_t> sample_starts,
                               std::vector<int64_t> document_starts, at::Device device);
  /// Documents packed into samples; `starts` as document_starts (each sample begins one). Positions
  /// restart if `reset_positions`.
  static SequenceLayout packed(int64_t batch, int64_t sequence, std::vector<uint64_t> sample_ids,
                               std::vector<int64_t> starts, bool reset_positions,
                               at::Device device);
};

/// A weight gradient that is still to be computed; the operator makes it in its backward.
class WgradTask {
 public:
  virtual ~WgradTask() = default;
  /// Adds to main_grad and pays back the uses of the parameters. Called once, without autograd.
  virtual void run() = 0;
  /// The tensors that it keeps until then.
  virtual std::vector<at::Tensor> holds() const = 0;
};

/// The weight gradients of one (chunk, microbatch). Not deferred: each runs as soon as it is known;
/// deferred: at drain().
class WgradQueue {
 public:
  explicit WgradQueue(bool deferred = false) : deferred_(deferred) {}
  void push(std::unique_ptr<WgradTask> task);
  void drain();
  bool deferred() const { return deferred_; }
  size_t size() const { return tasks_.size(); }
  /// Of the storages that the tasks hold.
  int64_t bytes() const;

 private:
  bool deferred_;
  std::deque<std::unique_ptr<WgradTask>> tasks_;
};

/// State of a step that layers write and `const` forward passes must not own.
struct StepState {
  /// Name of the first layer whose output was not finite, when the check is on.
  std::string first_nonfinite;
  /// Sums over this rank's targets, by the name of the loss term; not scaled. 0-dim double on the
  /// device.
  std::map<std::string, at::Tensor, std::less<>> loss_sums;
  /// With Wanted::scores, by loss term: targets whose best guess was right (0-dim int64 on the
  /// device), and what was said of each sample with a label.
  std::map<std::string, at::Tensor, std::less<>> hits;
  struct Prediction {
    double predicted = 0, label = 0;
  };
  std::map<std::string, std::vector<Prediction>, std::less<>> predictions;
  /// By layer with experts: [E + 1] int64, how many real tokens of this rank chose each expert, and
  /// how many of these choices were dropped.
  std::map<std::string, at::Tensor, std::less<>> expert_counts;
  /// With Wanted::max_logits, by attention module: [heads of this rank] in the accumulate type, the
  /// largest scale * q k over queries that are not padding and their visible keys, before cap, bias
  /// and sinks; -inf without such a pair.
  std::map<std::string, at::Tensor, std::less<>> max_logits;

  /// Of loss_sums and hits, read on the host; 0 without such a term.
  double loss_sum(std::string_view term) const;
  int64_t hit_count(std::string_view term) const;
};

/// By layer with experts: the share of each expert [E] in the choices of a step, in fp64.
using ExpertLoads = std::map<std::string, at::Tensor, std::less<>>;

/// What every stage knows of a microbatch.
struct Microbatch {
  std::map<std::string, at::Tensor, std::less<>>
      fields;                          ///< one value per token [T], or per sample [B]
  std::vector<SequenceLayout> layouts; ///< by the number of the stream
  /// By field of labels, where the host knows them: the tokens [R] that have a label, or undefined
  /// if leaving out the others is not worth the copies.
  std::map<std::string, at::Tensor, std::less<>> labelled_rows;

  /// Throws Error (internal) if the field does not exist.
  const at::Tensor& field(std::string_view name) const;
};

/// Additional results of a pass that the caller needs; segments store them in PassResults.
struct Wanted {
  bool loss = true;
  bool logits = false;
  at::Tensor logit_rows = {}; ///< [R] int64, tokens whose logits are wanted; undefined: all
  bool hidden = false;        ///< the hidden states after the last norm
  bool scores = false;        ///< StepState::hits and predictions
  bool max_logits = false;    ///< StepState::max_logits
  /// Tokens whose labels are scored: [R] int64 each, numbers of tokens and labels; a token may be
  /// there several times. Gives kTokenLogProbs and kTokenHits; undefined: none.
  at::Tensor scored_rows = {}, scored_labels = {};
};
/// [R]: ln p of each label in the accumulate type, and whether it has the largest logit (the first
/// of equals).
inline constexpr const char* kTokenLogProbs = "token_log_probs";
inline constexpr const char* kTokenHits = "token_hits";
/// By name: "loss" (scaled), and what was wanted: "logits", "last_hidden_state", ...; on ranks that
/// compute it.
using PassResults = std::map<std::string, at::Tensor, std::less<>>;

struct ForwardContext {
  const SequenceLayout* layout = nullptr; ///< of the stream that the segment works on
  const Microbatch* batch = nullptr;
  Wanted wanted;
  PassResults* results = nullptr;
  WgradQueue* wgrad = nullptr; ///< outlives the backward pass of this forward
  StepState* state = nullptr;
  KvCache* cache = nullptr; ///< of generation: begin() has been called
  /// Ascending rows that take an adapter of several; null: none do. Not under sequence parallel.
  const std::vector<VariantRows>* variant_rows = nullptr;
  /// By loss term: weight / number of targets of the whole step over all ranks, known before the
  /// first forward. A term that is not there has 1.
  std::map<std::string, double, std::less<>> loss_scales;
  uint64_t seed = 0;         ///< of dropout
  bool training = false;     ///< dropout is on
  bool count_uses = true;    ///< false in a recomputation: its uses were counted by the first pass
  Parts recomputed;          ///< parts of layers that are made again in backward
  bool check_finite = false; ///< name the first layer with a NaN or infinity in `state`

  std::vector<Param*>* uses = nullptr; ///< gets each parameter that use() announces; null: nobody

  const ExpertLoads* expert_loads = nullptr; ///< of the last step that changed the model

  /// Of a term that only training steps have.
  std::optional<double> given_scale(std::string_view term) const {
    const auto found = loss_scales.find(term);
    return found == loss_scales.end() ? std::nullopt : std::optional(found->second);
  }
  double loss_scale(std::string_view term) const { return given_scale(term).value_or(1); }
  /// Adds the sum of a term's losses over this rank's targets, not scaled: 0-dim double.
  void add_loss(std::string_view term, const at::Tensor& sum) const;
  /// Adds to StepState::expert_counts.
  void add_expert_counts(std::string_view layer, const at::Tensor& counts) const;
  /// A module's entry of StepState::max_logits, to be raised in place; undefined if it is not
  /// needed.
  at::Tensor max_logits(std::string_view module, int64_t heads,
                        const at::TensorOptions& options) const;
  void add_hits(std::string_view term, const at::Tensor& count) const;
  /// Of samples [B] where `counts` is true.
  void add_predictions(std::string_view term, const at::Tensor& predicted, const at::Tensor& labels,
                       const at::Tensor& counts) const;
  void deposit(std::string_view name, at::Tensor value) const;

  /// A parameter is about to be used by an operator whose backward will accumulate its gradient
  /// once.
  void use(Param* param) const {
    if (param == nullptr || !param->trainable || !count_uses || !differentiated) return;
    param->add_use();
    if (uses != nullptr) uses->push_back(param);
  }
  bool differentiated = false; ///< a backward pass will follow (also in the first pass of a
                               ///< recomputation, where grad mode is off)
};

} // namespace pentatron::nn
