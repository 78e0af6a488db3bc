#include "pentatron/trainer/step_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/parallel/context/zigzag.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::trainer {

namespace {

at::Tensor int64_tensor(const std::vector<int64_t>& values, at::Device device) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), host.data_ptr<int64_t>());
  return nn::to_device(host, device);
}

nn::SequenceLayout on_device(nn::SequenceLayout layout, at::Device device) {
  layout.positions = nn::to_device(layout.positions, device);
  layout.row_ids = nn::to_device(layout.row_ids, device);
  if (layout.whole != nullptr)
    layout.whole = std::make_shared<const nn::SequenceLayout>(on_device(*layout.whole, device));
  return layout;
}

} // namespace

nn::Microbatch model_input(const data::Batch& batch, const std::vector<std::string>& streams,
                           at::Device device) {
  const nn::MemoryScope scope(nn::MemoryCategory::kData);
  const std::vector<uint64_t> ids(batch.sample_ids.begin(), batch.sample_ids.end());
  nn::Microbatch input;
  for (const std::string& name : streams) {
    const data::StreamShape& shape = batch.stream(name);
    nn::SequenceLayout& layout = input.layouts.emplace_back(nn::SequenceLayout::ragged(
        shape.sequence_length, ids, shape.sample_starts, shape.cu_seqlens, device));
    // The loader decides where positions start again, which need not be where attention does.
    layout.positions = int64_tensor(shape.position_ids, device).to(at::kInt);
    layout.positions_given = shape.positions_given;
    for (const data::StreamRange& range : shape.real)
      layout.real.push_back({range.begin, range.end});
  }
  for (const auto& [name, values] : batch.fields) {
    input.fields[name] = values.field.type == data::FieldType::kInt64
                             ? int64_tensor(values.ints, device)
                             : nn::to_device(at::tensor(values.floats, at::kDouble), device);
  }
  return input;
}

void cut_context(nn::Microbatch& input, const data::Batch& batch,
                 const std::vector<std::string>& streams, const comm::Group& context) {
  if (context.size() == 1) return;
  for (nn::SequenceLayout& layout : input.layouts)
    layout = parallel::cut_samples(std::move(layout), context.rank(), context.size());
  for (auto& [name, values] : input.fields) {
    const std::string& stream = batch.fields.at(name).field.stream;
    const auto place = std::ranges::find(streams, stream) - streams.begin();
    if (stream.empty()) continue;
    const nn::SequenceLayout& layout = input.layouts[static_cast<size_t>(place)];
    values = parallel::own_tokens(values, layout);
    if (!name.starts_with("mtp_") || !planted("shifted_within_the_chunks_of_a_context_rank"))
      continue;
    int64_t end = 0;
    for (const nn::SampleChunk& chunk : layout.chunks) values[(end += chunk.size) - 1] = 0;
  }
}

void find_labelled_rows(nn::Microbatch& input, const models::ModelSpec& spec) {
  const nn::MemoryScope scope(nn::MemoryCategory::kData);
  for (const models::LossTerm& term : spec.losses) {
    const auto labels = input.fields.find(term.labels);
    if (labels == input.fields.end() || labels->second.scalar_type() != at::kLong) continue;
    const int64_t* const label = labels->second.const_data_ptr<int64_t>();
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < labels->second.numel(); ++i)
      if (label[i] >= 0) rows.push_back(i);
    input.labelled_rows[term.labels] =
        parallel::leaves_out(std::ssize(rows), labels->second.numel()) ? at::tensor(rows, at::kLong)
                                                                       : at::Tensor();
  }
}

HeadRows count_head_rows(const data::Batch& batch, const models::ModelSpec& spec,
                         int context_ranks) {
  HeadRows rows;
  for (const models::LossTerm& term : spec.losses) {
    const auto found = batch.fields.find(term.labels);
    if (found == batch.fields.end() || found->second.field.stream.empty()) continue;
    const std::vector<int64_t>& labels = found->second.ints;
    const data::StreamShape& stream = batch.stream(found->second.field.stream);
    for (int rank = 0; rank < context_ranks; ++rank) {
      int64_t labelled = 0, tokens = 0, real = 0; // that the rank has
      for (size_t sample = 0; sample + 1 < stream.sample_starts.size(); ++sample) {
        const int64_t first = stream.sample_starts[sample];
        for (const int chunk : {rank, 2 * context_ranks - 1 - rank}) {
          const auto [begin, end] = parallel::zigzag_chunk(stream.sample_starts[sample + 1] - first,
                                                           chunk, context_ranks);
          tokens += end - begin;
          labelled += std::count_if(labels.begin() + first + begin, labels.begin() + first + end,
                                    [](int64_t label) { return label >= 0; });
          real += stream.real.empty()
                      ? end - begin
                      : std::max<int64_t>(0, std::min(end, stream.real[sample].end) -
                                                 std::max(begin, stream.real[sample].begin));
        }
      }
      rows.computed += parallel::head_rows(labelled, tokens);
      rows.real += parallel::leaves_out(labelled, tokens) ? labelled : real;
    }
  }
  return rows;
}

nn::Microbatch on_device(nn::Microbatch input, at::Device device) {
  if (device.is_cpu()) return input;
  for (nn::SequenceLayout& layout : input.layouts) layout = on_device(std::move(layout), device);
  for (auto* const tensors : {&input.fields, &input.labelled_rows})
    for (auto& [name, values] : *tensors)
      if (values.defined()) values = nn::to_device(values, device);
  return input;
}

} // namespace pentatron::trainer
