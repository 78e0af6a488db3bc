#include "pentatron/checkpoint/state_pieces.h"

#include <map>

#include <ATen/ATen.h>

#include "pentatron/checkpoint/tensor_io.h"

namespace pentatron::checkpoint {

namespace {

std::vector<nn::FlatRange> written_ranges(const StatePiece& piece) {
  const comm::Group& replicas = piece.replicas;
  const int64_t size = piece.range.size;
  const int64_t begin = size * replicas.rank() / replicas.size();
  const int64_t end = size * (replicas.rank() + 1) / replicas.size();
  return intersect({piece.range.begin + begin, end - begin},
                   nn::counted_ranges(piece.param->spec(), piece.param->where()));
}

} // namespace

std::vector<StatePiece> value_pieces(const parallel::DataParallel& store, bool adapters_only) {
  std::vector<StatePiece> pieces;
  for (const nn::Shard& shard : store.shards())
    for (const nn::Piece& piece : shard.pieces)
      if (!adapters_only || piece.param->adapter || piece.param->with_adapters)
        pieces.push_back({piece.param,
                          piece.param->name(),
                          {piece.param_begin, piece.size},
                          shard.values.narrow(0, piece.begin, piece.size),
                          shard.replicas});
  if (adapters_only) return pieces;
  for (const nn::Param& buffer : store.params().buffers())
    pieces.push_back({&buffer,
                      buffer.name(),
                      {0, buffer.numel()},
                      buffer.value().view({-1}),
                      store.buffer_replicas()});
  return pieces;
}

std::vector<StatePiece> optimizer_pieces(optim::Optimizer& optimizer) {
  std::vector<StatePiece> pieces;
  optimizer.for_each_state([&](const nn::Shard& shard, const nn::Piece& piece,
                               const std::string& what, const at::Tensor& data) {
    pieces.push_back({piece.param,
                      piece.param->name() + "/" + what,
                      {piece.param_begin, piece.size},
                      data,
                      shard.replicas,
                      shard.values.narrow(0, piece.begin, piece.size)});
  });
  return pieces;
}

uint64_t FilePlan::data_bytes() const {
  uint64_t bytes = 0;
  for (const std::vector<at::Tensor>& views : contents)
    for (const at::Tensor& view : views) bytes += static_cast<uint64_t>(view.nbytes());
  return bytes;
}

FilePlan plan_file(const std::string& kind, const std::vector<StatePiece>& pieces,
                   const comm::Group& world) {
  FilePlan plan{
      .name = shard_name(kind, world.rank(), world.size()), .entries = {}, .contents = {}};
  std::map<std::string, size_t> places;
  for (const StatePiece& piece : pieces) {
    for (const nn::FlatRange& range : written_ranges(piece)) {
      for (PlacedBox& placed : placed_boxes(piece.param->spec(), piece.param->where(), range)) {
        const auto [place, added] = places.try_emplace(piece.name, plan.entries.size());
        if (added) {
          plan.entries.push_back(
              {piece.name, safe_dtype(piece.data.scalar_type()), piece.param->spec().shape, {}});
          plan.contents.emplace_back();
        }
        const int64_t begin = placed.begin + range.begin - piece.range.begin;
        plan.contents[place->second].push_back(piece.data.as_strided(
            placed.box.size, placed.strides, piece.data.storage_offset() + begin));
        plan.entries[place->second].boxes.push_back(std::move(placed.box));
      }
    }
  }
  return plan;
}

} // namespace pentatron::checkpoint
