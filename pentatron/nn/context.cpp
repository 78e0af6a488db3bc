#include "pentatron/nn/context.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <set>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/record.h"

namespace pentatron::nn {

namespace {

/// Sample and position in one number: 2^40 samples of up to 2^24 tokens.
constexpr int kPositionBits = 24;

/// Positions and dropout addresses, by the places of the tokens in their samples.
void fill(SequenceLayout& layout, at::Device device) {
  PT_DCHECK(static_cast<int64_t>(layout.sample_ids.size()) == layout.batch);
  const at::Tensor rows = at::empty({layout.tokens()}, at::kLong);
  const at::Tensor positions = at::empty({layout.tokens()}, at::kInt);
  const bool wrong = layout.tokens() < layout.batch * layout.sequence &&
                     planted("position_counted_from_the_row_of_tokens");
  for (int64_t b = 0; b < layout.batch; ++b) {
    const auto i = static_cast<size_t>(b);
    const auto base = static_cast<int64_t>(layout.sample_ids[i] << kPositionBits);
    for (int64_t t = layout.sample_starts[i]; t < layout.sample_starts[i + 1]; ++t) {
      const int64_t place =
          t - (wrong ? t / layout.sequence * layout.sequence : layout.sample_starts[i]);
      rows.data_ptr<int64_t>()[t] = base | place;
      positions.data_ptr<int32_t>()[t] = static_cast<int32_t>(place);
    }
  }
  layout.row_ids = to_device(rows, device);
  layout.positions = to_device(positions, device);
}

/// The real tokens of document d.
TokenRange real_tokens(const SequenceLayout& layout, size_t d) {
  TokenRange range{layout.document_starts[d], layout.document_starts[d + 1]};
  if (layout.real.empty() || range.begin == range.end) return range;
  const size_t sample = layout.sample_of(range.begin);
  const int64_t first = layout.sample_starts[sample];
  const TokenRange& real = layout.real[sample];
  range.begin = std::clamp(first + real.begin, range.begin, range.end);
  range.end = std::clamp(first + real.end, range.begin, range.end);
  return range;
}

/// The tokens of document d of the queries see the real ones of document d of the keys.
std::vector<kernels::AttentionPair> pairs_of(const SequenceLayout& queries,
                                             const SequenceLayout& keys) {
  std::vector<kernels::AttentionPair> pairs;
  pairs.reserve(queries.document_starts.size() - 1);
  const size_t documents = queries.document_starts.size() - 1;
  const bool wrong = &queries != &keys && keys.tokens() < keys.batch * keys.sequence &&
                     planted("encoder_output_of_the_next_sample");
  for (size_t d = 0; d < documents; ++d) {
    const int64_t begin = queries.document_starts[d];
    const size_t source = wrong ? (d + 1) % documents : d;
    const TokenRange real = real_tokens(keys, source);
    const int64_t first = keys.document_starts[source];
    pairs.push_back({.query_begin = begin,
                     .query_size = queries.document_starts[d + 1] - begin,
                     .key_begin = real.begin,
                     .key_size = real.end - real.begin,
                     .offset = real.begin - first,
                     .key_position = real.begin - keys.sample_starts[keys.sample_of(first)]});
  }
  return pairs;
}

} // namespace

std::vector<kernels::AttentionPair> SequenceLayout::self_attention() const {
  PT_DCHECK(whole == nullptr);
  return pairs_of(*this, *this);
}

std::vector<kernels::AttentionPair>
SequenceLayout::with_real_queries(std::vector<kernels::AttentionPair> pairs) const {
  if (real.empty()) return pairs;
  for (kernels::AttentionPair& pair : pairs) {
    if (pair.query_size == 0) continue;
    const size_t sample = sample_of(pair.query_begin);
    const int64_t first = sample_starts[sample], last = pair.query_begin + pair.query_size;
    const int64_t begin = std::clamp(first + real[sample].begin, pair.query_begin, last);
    pair.query_size = std::clamp(first + real[sample].end, begin, last) - begin;
    pair.offset -= begin - pair.query_begin;
    pair.query_begin = begin;
  }
  return pairs;
}

std::vector<kernels::AttentionPair>
SequenceLayout::cross_attention(const SequenceLayout& memory) const {
  bool alike = memory.batch == batch && memory.document_starts.size() == document_starts.size();
  for (size_t d = 0; alike && d < document_starts.size(); ++d)
    alike = sample_of(document_starts[d]) == memory.sample_of(memory.document_starts[d]);
  if (!alike) {
    raise<ShapeError>("{} documents in {} samples cannot attend to {} documents in {} samples",
                      document_starts.size() - 1, batch, memory.document_starts.size() - 1,
                      memory.batch);
  }
  return pairs_of(*this, memory);
}

SequenceLayout SequenceLayout::dense(int64_t batch, int64_t sequence,
                                     std::vector<uint64_t> sample_ids, at::Device device) {
  std::vector<int64_t> starts;
  for (int64_t b = 0; b <= batch; ++b) starts.push_back(b * sequence);
  return ragged(sequence, std::move(sample_ids), starts, starts, device);
}

SequenceLayout SequenceLayout::ragged(int64_t sequence, std::vector<uint64_t> sample_ids,
                                      std::vector<int64_t> sample_starts,
                                      std::vector<int64_t> document_starts, at::Device device) {
  SequenceLayout layout;
  layout.batch = std::ssize(sample_ids);
  layout.sequence = sequence;
  layout.sample_ids = std::move(sample_ids);
  layout.sample_starts = std::move(sample_starts);
  layout.document_starts = std::move(document_starts);
  const std::vector<int64_t>& cuts = layout.document_starts;
  PT_DCHECK(std::ssize(layout.sample_starts) == layout.batch + 1);
  PT_DCHECK(cuts.size() >= 2 && cuts.front() == 0 && cuts.back() == layout.tokens());
  for (size_t d = 0; d + 1 < cuts.size(); ++d)
    PT_DCHECK(cuts[d] < cuts[d + 1] &&
              layout.sample_of(cuts[d]) == layout.sample_of(cuts[d + 1] - 1));
  fill(layout, device);
  return layout;
}

SequenceLayout SequenceLayout::packed(int64_t batch, int64_t sequence,
                                      std::vector<uint64_t> sample_ids, std::vector<int64_t> starts,
                                      bool reset_positions, at::Device device) {
  std::vector<int64_t> samples;
  for (int64_t b = 0; b <= batch; ++b) samples.push_back(b * sequence);
  SequenceLayout layout =
      ragged(sequence, std::move(sample_ids), std::move(samples), std::move(starts), device);
  if (!reset_positions) return layout;
  const std::vector<int64_t>& cuts = layout.document_starts;
  std::vector<int64_t> positions;
  for (size_t d = 0; d + 1 < cuts.size(); ++d)
    for (int64_t t = cuts[d]; t < cuts[d + 1]; ++t) positions.push_back(t - cuts[d]);
  layout.positions = to_device(at::tensor(positions, at::kInt), device);
  return layout;
}

size_t SequenceLayout::sample_of(int64_t token) const {
  return static_cast<size_t>(std::ranges::upper_bound(sample_starts, token) -
                             sample_starts.begin()) -
         1;
}

at::Tensor SequenceLayout::sample_numbers() const {
  const at::Tensor numbers = at::empty({tokens()}, at::kLong);
  for (int64_t b = 0; b < batch; ++b)
    numbers
        .narrow(0, sample_starts[static_cast<size_t>(b)],
                sample_starts[static_cast<size_t>(b) + 1] - sample_starts[static_cast<size_t>(b)])
        .fill_(b);
  return to_device(numbers, row_ids.device());
}

at::Tensor SequenceLayout::real_tokens() const {
  if (real.empty()) return {};
  const at::Tensor begins = at::empty({batch}, at::kLong), ends = at::empty({batch}, at::kLong);
  for (size_t b = 0; b < real.size(); ++b) {
    begins.mutable_data_ptr<int64_t>()[b] = real[b].begin;
    ends.mutable_data_ptr<int64_t>()[b] = real[b].end;
  }
  const at::Tensor sample = sample_numbers(),
                   place = row_ids.bitwise_and((int64_t{1} << kPositionBits) - 1);
  return place.ge(to_device(begins, place.device()).index_select(0, sample)) &
         place.lt(to_device(ends, place.device()).index_select(0, sample));
}

at::Tensor SequenceLayout::outer(const at::Tensor& per_token) const {
  return outer_size < 0 ? per_token : per_token.narrow(0, outer_begin, outer_size);
}

void SequenceLayout::cut_outer(int rank, int ranks) {
  if (tokens() % ranks != 0)
    raise<ShapeError>(
        "the {} tokens of {} samples cannot be divided evenly among {} sequence-parallel ranks\n  "
        "try: parallel.sequence_parallel=false, or samples of another length",
        tokens(), batch, ranks);
  outer_size = tokens() / ranks;
  outer_begin = rank * outer_size;
}

const at::Tensor& Microbatch::field(std::string_view name) const {
  const auto found = fields.find(name);
  if (found == fields.end()) raise<Error>("internal error: a microbatch has no field {}", name);
  return found->second;
}

/// Adds to a term's entry; `sum` is not changed. The sums of a step are no activations.
static void add_to(std::map<std::string, at::Tensor, std::less<>>& sums, std::string_view term,
                   const at::Tensor& sum) {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  at::Tensor& all = sums.try_emplace(std::string(term)).first->second;
  all = all.defined() ? all + sum : sum.clone();
}

double StepState::loss_sum(std::string_view term) const {
  const auto found = loss_sums.find(term);
  return found == loss_sums.end() ? 0 : host_value<double>(found->second);
}

int64_t StepState::hit_count(std::string_view term) const {
  const auto found = hits.find(term);
  return found == hits.end() ? 0 : host_value<int64_t>(found->second);
}

void ForwardContext::add_loss(std::string_view term, const at::Tensor& sum) const {
  if (state == nullptr || !count_uses) return; // counted by the first pass
  add_to(state->loss_sums, term, sum);
}

void ForwardContext::add_expert_counts(std::string_view layer, const at::Tensor& counts) const {
  if (state == nullptr || !count_uses) return; // counted by the first pass
  add_to(state->expert_counts, layer, counts);
}

at::Tensor ForwardContext::max_logits(std::string_view module, int64_t heads,
                                      const at::TensorOptions& options) const {
  if (!wanted.max_logits || state == nullptr || !count_uses) return {}; // known by the first pass
  at::Tensor& most = state->max_logits.try_emplace(std::string(module)).first->second;
  if (!most.defined()) most = at::full({heads}, -std::numeric_limits<double>::infinity(), options);
  return most;
}

void ForwardContext::add_hits(std::string_view term, const at::Tensor& count) const {
  if (state != nullptr) add_to(state->hits, term, count);
}

void ForwardContext::add_predictions(std::string_view term, const at::Tensor& predicted,
                                     const at::Tensor& labels, const at::Tensor& counts) const {
  if (state == nullptr) return;
  std::vector<StepState::Prediction>& list =
      state->predictions.try_emplace(std::string(term)).first->second;
  const at::Tensor rows = rows_where(counts);
  const auto numbers = [&](const at::Tensor& x) {
    return host_values(x.index_select(0, rows).to(at::kDouble));
  };
  const at::Tensor said = numbers(predicted), right = numbers(labels);
  for (int64_t i = 0; i < said.numel(); ++i)
    list.push_back({said.const_data_ptr<double>()[i], right.const_data_ptr<double>()[i]});
}

void ForwardContext::deposit(std::string_view name, at::Tensor value) const {
  if (results != nullptr) results->insert_or_assign(std::string(name), std::move(value));
}

void WgradQueue::push(std::unique_ptr<WgradTask> task) {
  tasks_.push_back(std::move(task));
  if (!deferred_) drain();
}

void WgradQueue::drain() {
  const NoAutograd guard;
  while (!tasks_.empty()) {
    const std::unique_ptr<WgradTask> task = std::move(tasks_.front());
    tasks_.pop_front();
    task->run();
  }
}

int64_t WgradQueue::bytes() const {
  std::set<const void*> seen;
  int64_t sum = 0;
  for (const std::unique_ptr<WgradTask>& task : tasks_)
    for (const at::Tensor& x : task->holds())
      if (x.defined() && seen.insert(x.storage().unsafeGetStorageImpl()).second)
        sum += static_cast<int64_t>(x.storage().nbytes());
  return sum;
}

} // namespace pentatron::nn
