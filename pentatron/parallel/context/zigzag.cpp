#include "pentatron/parallel/context/zigzag.h"

#include <ATen/ATen.h>

#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"

namespace pentatron::parallel {

nn::TokenRange zigzag_chunk(int64_t tokens, int64_t chunk, int ranks) {
  return {chunk * tokens / (2 * ranks), (chunk + 1) * tokens / (2 * ranks)};
}

int64_t zigzag_tokens(int64_t tokens, int rank, int ranks) {
  const nn::TokenRange early = zigzag_chunk(tokens, rank, ranks),
                       late = zigzag_chunk(tokens, 2 * ranks - 1 - rank, ranks);
  return early.end - early.begin + late.end - late.begin;
}

std::vector<nn::SampleChunk> zigzag_chunks(const nn::SequenceLayout& whole, int rank, int ranks) {
  std::vector<nn::SampleChunk> chunks;
  const int64_t last = 2 * ranks - (ranks > 1 && planted("zigzag_off_by_one") ? 2 : 1);
  for (int64_t sample = 0; sample < whole.batch; ++sample) {
    const auto i = static_cast<size_t>(sample);
    const int64_t tokens = whole.sample_starts[i + 1] - whole.sample_starts[i];
    for (const int64_t chunk : {int64_t{rank}, last - rank}) {
      const nn::TokenRange range = zigzag_chunk(tokens, chunk, ranks);
      chunks.push_back({.sample = sample, .begin = range.begin, .size = range.end - range.begin});
    }
  }
  return chunks;
}

int64_t num_rows(const std::vector<nn::SampleChunk>& chunks) {
  int64_t rows = 0;
  for (const nn::SampleChunk& chunk : chunks) rows += chunk.size;
  return rows;
}

at::Tensor rows_of_chunks(const at::Tensor& whole_rows, const nn::SequenceLayout& whole,
                          const std::vector<nn::SampleChunk>& chunks) {
  PT_DCHECK(whole_rows.size(0) == whole.tokens());
  std::vector<at::Tensor> rows;
  rows.reserve(chunks.size());
  for (const nn::SampleChunk& chunk : chunks)
    rows.push_back(whole_rows.narrow(
        0, whole.sample_starts[static_cast<size_t>(chunk.sample)] + chunk.begin, chunk.size));
  return at::cat(rows, 0);
}

at::Tensor own_tokens(const at::Tensor& per_token, const nn::SequenceLayout& layout) {
  if (layout.whole == nullptr) return per_token;
  return rows_of_chunks(per_token, *layout.whole, layout.chunks);
}

nn::SequenceLayout cut_samples(nn::SequenceLayout whole, int rank, int ranks) {
  PT_DCHECK(whole.whole == nullptr && whole.outer_size < 0);
  if (ranks == 1) return whole;
  for (size_t i = 0; i + 1 < whole.sample_starts.size(); ++i) {
    const int64_t tokens = whole.sample_starts[i + 1] - whole.sample_starts[i];
    if (tokens >= 2 * ranks) continue;
    raise<ShapeError>("a sample of {} tokens cannot be cut into 2 chunks for each of {} "
                      "context-parallel ranks",
                      tokens, ranks);
  }
  nn::SequenceLayout own;
  own.batch = whole.batch;
  own.sequence = whole.sequence;
  own.sample_ids = whole.sample_ids;
  own.positions_given = whole.positions_given;
  own.chunks = zigzag_chunks(whole, rank, ranks);
  own.sample_starts = {0};
  for (const nn::SampleChunk& chunk : own.chunks) {
    own.sample_starts.resize(static_cast<size_t>(chunk.sample + 2), own.sample_starts.back());
    own.sample_starts.back() += chunk.size;
  }
  own.document_starts = own.sample_starts;
  own.real = whole.real;
  own.whole = std::make_shared<const nn::SequenceLayout>(std::move(whole));
  own.positions = own_tokens(own.whole->positions, own);
  own.row_ids = own_tokens(own.whole->row_ids, own);
  if (planted("positions_count_own_tokens"))
    own.positions = own.whole->positions.narrow(0, 0, own.tokens()).clone();
  if (planted("dropout_by_place_among_own_tokens"))
    own.row_ids = own.whole->row_ids.narrow(0, 0, own.tokens()).clone();
  return own;
}

} // namespace pentatron::parallel
