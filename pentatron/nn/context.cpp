#include "pentatron/nn/context.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/record.h"

namespace pentatron::nn {

namespace {

/// Sample and position in one number: 2^40 samples of up to 2^24 tokens.
constexpr int kPositionBits = 24;

void fill(SequenceLayout& layout, const std::vector<int32_t>& positions, at::Device device) {
  PT_DCHECK(static_cast<int64_t>(layout.sample_ids.size()) == layout.batch);
  at::Tensor rows = at::empty({layout.tokens()}, at::kLong);
  int64_t* row = rows.data_ptr<int64_t>();
  for (int64_t b = 0; b < layout.batch; ++b) {
    const int64_t base =
        static_cast<int64_t>(layout.sample_ids[static_cast<size_t>(b)] << kPositionBits);
    for (int64_t s = 0; s < layout.sequence; ++s) *row++ = base | s;
  }
  layout.row_ids = rows.to(device);
  at::Tensor position = at::empty({layout.tokens()}, at::kInt);
  std::copy(positions.begin(), positions.end(), position.data_ptr<int32_t>());
  layout.positions = position.to(device);
}

/// The real tokens of document d.
TokenRange real_tokens(const SequenceLayout& layout, size_t d) {
  TokenRange range{layout.document_starts[d], layout.document_starts[d + 1]};
  if (layout.real.empty() || range.begin == range.end) return range;
  const int64_t sample = range.begin / layout.sequence, first = sample * layout.sequence;
  const TokenRange& real = layout.real[static_cast<size_t>(sample)];
  range.begin = std::clamp(first + real.begin, range.begin, range.end);
  range.end = std::clamp(first + real.end, range.begin, range.end);
  return range;
}

/// The tokens of document d of the queries see the real ones of document d of the keys.
std::vector<kernels::AttentionPair> pairs_of(const SequenceLayout& queries,
                                             const SequenceLayout& keys) {
  std::vector<kernels::AttentionPair> pairs;
  pairs.reserve(queries.document_starts.size() - 1);
  for (size_t d = 0; d + 1 < queries.document_starts.size(); ++d) {
    const int64_t begin = queries.document_starts[d];
    const TokenRange real = real_tokens(keys, d);
    pairs.push_back({.query_begin = begin,
                     .query_size = queries.document_starts[d + 1] - begin,
                     .key_begin = real.begin,
                     .key_size = real.end - real.begin,
                     .offset = real.begin - keys.document_starts[d],
                     .key_position = real.begin % keys.sequence});
  }
  return pairs;
}

} // namespace

std::vector<TokenRange> real_ranges(const at::Tensor& mask, int64_t batch, int64_t sequence) {
  PT_DCHECK(mask.numel() == batch * sequence);
  const at::Tensor real = mask.reshape({batch, sequence}).ne(0).cpu();
  const auto is_real = real.accessor<bool, 2>();
  std::vector<TokenRange> ranges;
  for (int64_t b = 0; b < batch; ++b) {
    TokenRange range;
    while (range.begin < sequence && !is_real[b][range.begin]) ++range.begin;
    range.end = range.begin;
    while (range.end < sequence && is_real[b][range.end]) ++range.end;
    if (range.begin == sequence) range = {};
    for (int64_t s = range.end; s < sequence; ++s) {
      if (range.end > 0 && is_real[b][s]) {
        raise<DataError>("the attention mask of sample {} of the batch has padding at token {}, "
                         "between real tokens\n  try: pad at the beginning or the end of samples",
                         b, range.end);
      }
    }
    ranges.push_back(range);
  }
  return ranges;
}

std::vector<kernels::AttentionPair> SequenceLayout::self_attention() const {
  return pairs_of(*this, *this);
}

std::vector<kernels::AttentionPair>
SequenceLayout::cross_attention(const SequenceLayout& memory) const {
  bool alike = memory.batch == batch && memory.document_starts.size() == document_starts.size();
  for (size_t d = 0; alike && d < document_starts.size(); ++d)
    alike = document_starts[d] / sequence == memory.document_starts[d] / memory.sequence;
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
  return packed(batch, sequence, std::move(sample_ids), std::move(starts), false, device);
}

SequenceLayout SequenceLayout::packed(int64_t batch, int64_t sequence,
                                      std::vector<uint64_t> sample_ids, std::vector<int64_t> starts,
                                      bool reset_positions, at::Device device) {
  SequenceLayout layout;
  layout.batch = batch;
  layout.sequence = sequence;
  layout.sample_ids = std::move(sample_ids);
  layout.document_starts = std::move(starts);
  const std::vector<int64_t>& cuts = layout.document_starts;
  PT_DCHECK(cuts.size() >= 2 && cuts.front() == 0 && cuts.back() == batch * sequence);
  std::vector<int32_t> positions(static_cast<size_t>(batch * sequence));
  for (size_t d = 0; d + 1 < cuts.size(); ++d) {
    PT_DCHECK(cuts[d] < cuts[d + 1] && cuts[d] / sequence == (cuts[d + 1] - 1) / sequence);
    for (int64_t t = cuts[d]; t < cuts[d + 1]; ++t) {
      positions[static_cast<size_t>(t)] =
          static_cast<int32_t>(reset_positions ? t - cuts[d] : t % sequence);
    }
  }
  fill(layout, positions, device);
  return layout;
}

at::Tensor SequenceLayout::outer(const at::Tensor& per_token) const {
  return outer_size < 0 ? per_token : per_token.narrow(0, outer_begin, outer_size);
}

void SequenceLayout::cut_outer(int rank, int ranks) {
  if (tokens() % ranks != 0)
    raise<ShapeError>(
        "{} samples of {} tokens cannot be divided evenly among {} sequence-parallel ranks", batch,
        sequence, ranks);
  outer_size = tokens() / ranks;
  outer_begin = rank * outer_size;
}

const at::Tensor& Microbatch::field(std::string_view name) const {
  const auto found = fields.find(name);
  if (found == fields.end()) raise<Error>("internal error: a microbatch has no field {}", name);
  return found->second;
}

void ForwardContext::add_loss(std::string_view term, double sum) const {
  if (state == nullptr || !count_uses) return; // counted by the first pass
  state->loss_sums.try_emplace(std::string(term)).first->second += sum;
}

void ForwardContext::add_hits(std::string_view term, int64_t count) const {
  if (state != nullptr) state->hits.try_emplace(std::string(term)).first->second += count;
}

void ForwardContext::add_predictions(std::string_view term, const at::Tensor& predicted,
                                     const at::Tensor& labels, const at::Tensor& counts) const {
  if (state == nullptr) return;
  std::vector<StepState::Prediction>& list =
      state->predictions.try_emplace(std::string(term)).first->second;
  const at::Tensor rows = at::nonzero(counts).view({-1});
  const auto numbers = [&](const at::Tensor& x) {
    return x.index_select(0, rows).to(at::kCPU, at::kDouble).contiguous();
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
