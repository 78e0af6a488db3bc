#include "pentatron/checkpoint/run_checkpoint.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/container/checkpoint_writer.h"
#include "pentatron/checkpoint/container/reader.h"
#include "pentatron/checkpoint/container/shard_writer.h"
#include "pentatron/checkpoint/placement.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/comm/gather_text.h"

namespace pentatron::checkpoint {

namespace {

namespace fs = std::filesystem;

/// A flat piece of a parameter, or of something that the optimizer keeps of it.
struct StatePiece {
  const nn::Param* param;
  std::string name; ///< of the tensor in the checkpoint
  nn::FlatRange range;
  at::Tensor data; ///< flat
};

std::vector<StatePiece> value_pieces(const parallel::DataParallel& store) {
  std::vector<StatePiece> pieces;
  for (const nn::Shard& shard : store.shards())
    for (const nn::Piece& piece : shard.pieces)
      pieces.push_back({piece.param,
                        piece.param->name(),
                        {piece.param_begin, piece.size},
                        shard.values.narrow(0, piece.begin, piece.size)});
  return pieces;
}

std::vector<StatePiece> optimizer_pieces(optim::Optimizer& optimizer) {
  std::vector<StatePiece> pieces;
  optimizer.for_each_state(
      [&](const nn::Param& param, int64_t begin, const std::string& what, const at::Tensor& data) {
        pieces.push_back({&param, param.name() + "/" + what, {begin, data.numel()}, data});
      });
  return pieces;
}

/// What this rank writes of a piece, so that every element of the run is written once: its share
/// among the ranks that own the same shards, of what it counts among all others.
std::vector<nn::FlatRange> written_ranges(const StatePiece& piece, const comm::Group& replicas) {
  const int64_t size = piece.range.size;
  const int64_t begin = size * replicas.rank() / replicas.size();
  const int64_t end = size * (replicas.rank() + 1) / replicas.size();
  return intersect({piece.range.begin + begin, end - begin},
                   nn::counted_ranges(piece.param->spec(), piece.param->where()));
}

/// Writes what this rank owns of the pieces; returns what the manifest says about the file.
std::string write_pieces(const fs::path& folder, const std::string& kind,
                         const std::vector<StatePiece>& pieces, const RunParts& parts) {
  struct Part {
    const StatePiece* piece;
    PlacedBox placed;
  };
  std::vector<EntrySpec> entries;
  std::vector<std::vector<Part>> contents;
  std::map<std::string, size_t> places;
  for (const StatePiece& piece : pieces) {
    for (const nn::FlatRange& range : written_ranges(piece, parts.store.replicas())) {
      for (PlacedBox& placed : placed_boxes(piece.param->spec(), piece.param->where(), range)) {
        const auto [place, added] = places.try_emplace(piece.name, entries.size());
        if (added) {
          entries.push_back(
              {piece.name, safe_dtype(piece.data.scalar_type()), piece.param->spec().shape, {}});
          contents.emplace_back();
        }
        placed.begin += range.begin - piece.range.begin;
        entries[place->second].boxes.push_back(placed.box);
        contents[place->second].push_back({&piece, std::move(placed)});
      }
    }
  }
  const comm::Group& world = parts.world;
  ShardFileWriter file(folder, shard_name(kind, world.rank(), world.size()), entries);
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const Part& part : contents[i]) {
      const at::Tensor data = part.piece->data
                                  .as_strided(part.placed.box.size, part.placed.strides,
                                              part.piece->data.storage_offset() + part.placed.begin)
                                  .contiguous()
                                  .cpu();
      file.write(entries[i].name, {static_cast<const std::byte*>(data.const_data_ptr()),
                                   static_cast<size_t>(data.nbytes())});
    }
  }
  return file.finish();
}

void check_info(const CheckpointReader& reader, const StatePiece& piece) {
  const TensorInfo& info = reader.info(piece.name);
  const std::vector<int64_t>& shape = piece.param->spec().shape;
  if (info.shape == shape && scalar_type(info.dtype) == piece.data.scalar_type()) return;
  raise<CheckpointError>("{} is {} [{}] in the checkpoint and {} [{}] in the run", piece.name,
                         name_of(info.dtype), fmt::join(info.shape, ", "),
                         c10::toString(piece.data.scalar_type()), fmt::join(shape, ", "));
}

void read_piece(CheckpointReader& reader, const StatePiece& piece) {
  check_info(reader, piece);
  at::Tensor target = piece.data;
  const bool direct = target.is_cpu() && target.is_contiguous();
  const at::Tensor data =
      direct ? target : at::empty(target.sizes(), target.options().device(at::kCPU));
  data.zero_(); // padding
  auto* const bytes = static_cast<std::byte*>(data.mutable_data_ptr());
  const auto element = static_cast<int64_t>(data.element_size());
  for (const PlacedBox& placed :
       placed_boxes(piece.param->spec(), piece.param->where(), piece.range))
    reader.read(piece.name, placed.box,
                {bytes + placed.begin * element,
                 static_cast<size_t>((data.numel() - placed.begin) * element)},
                placed.strides);
  if (!direct) target.copy_(data);
}

/// Every tensor of the checkpoint must have been asked for by some rank.
void check_nothing_left(const CheckpointReader& reader, const std::set<std::string>& names,
                        const comm::Group& world) {
  std::vector<std::string> all;
  for (const std::string& text :
       comm::gather_text(fmt::format("{}", fmt::join(names, "\n")), world))
    for (const std::string_view name : split(text, '\n')) all.emplace_back(name);
  std::sort(all.begin(), all.end());
  const std::vector<std::string> left = reader.unexpected(all);
  if (!left.empty())
    raise<CheckpointError>(
        "{}: {} is not part of the model of this run{}", reader.folder().string(), left[0],
        left.size() > 1 ? fmt::format(", nor are {} more", left.size() - 1) : "");
}

} // namespace

fs::path save_run(const fs::path& dir, const TrainState& state, const RunParts& parts,
                  const Retention& retention) {
  const comm::Group& world = parts.world;
  const bool first = world.rank() == 0;
  std::optional<CheckpointWriter> writer;
  if (first) writer.emplace(dir, state.iteration);
  const fs::path aside = comm::gather_text(first ? writer->path().string() : "", world)[0];
  const std::string model = write_pieces(aside, "model", value_pieces(parts.store), parts);
  const std::string optimizer =
      write_pieces(aside, "optimizer", optimizer_pieces(parts.optimizer), parts);
  std::vector<std::string> descriptions = comm::gather_text(model, world);
  for (std::string& text : comm::gather_text(optimizer, world))
    descriptions.push_back(std::move(text));
  fs::path folder;
  if (first) {
    folder =
        writer->commit(descriptions, {.state = {{"consumed_samples", state.consumed_samples},
                                                {"optimizer_steps", parts.optimizer.steps()},
                                                {"skipped_iterations", state.skipped_iterations},
                                                {"nan_iterations", state.nan_iterations}},
                                      .config_yaml = state.config_yaml,
                                      .tokenizer = ""});
    writer.reset(); // its lock too
    prune_checkpoints(dir, retention);
  }
  return comm::gather_text(folder.string(), world)[0];
}

std::optional<FoundCheckpoint> find_run(const fs::path& dir, const comm::Group& world) {
  std::optional<FoundCheckpoint> found;
  if (world.rank() == 0) found = newest_checkpoint(dir);
  const auto tell = [&](const std::string& text) { return comm::gather_text(text, world)[0]; };
  const std::string folder = tell(found ? found->folder.string() : "");
  const std::string passed_over = tell(found ? found->passed_over : "");
  if (folder.empty()) return std::nullopt;
  return FoundCheckpoint{folder, passed_over};
}

TrainState load_run(const fs::path& folder, const RunParts& parts) {
  CheckpointReader reader(folder);
  std::set<std::string> names;
  for (const StatePiece& piece : value_pieces(parts.store)) {
    read_piece(reader, piece);
    names.insert(piece.name);
  }
  parts.optimizer.adopt_values();
  for (const StatePiece& piece : optimizer_pieces(parts.optimizer)) {
    read_piece(reader, piece);
    names.insert(piece.name);
  }
  check_nothing_left(reader, names, parts.world);
  parts.store.publish_values();
  parts.store.wait_values();
  const Manifest& manifest = reader.manifest();
  const std::string where = folder.string();
  parts.optimizer.set_steps(json_get<int64_t>(manifest.state, "optimizer_steps", where));
  return {.iteration = manifest.iteration,
          .consumed_samples = json_get<int64_t>(manifest.state, "consumed_samples", where),
          .skipped_iterations = json_get<int64_t>(manifest.state, "skipped_iterations", where),
          .nan_iterations = json_get<int64_t>(manifest.state, "nan_iterations", where),
          .config_yaml = manifest.config_yaml};
}

void load_params(const fs::path& folder, nn::ParamList& params) {
  CheckpointReader reader(folder);
  std::vector<std::string> names;
  for (const nn::Param& param : params) {
    read_piece(reader, {&param, param.name(), {0, param.numel()}, param.value().view(-1)});
    names.push_back(param.name());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : reader.unexpected(names))
    if (name.find('/') == std::string::npos)
      raise<CheckpointError>("{}: {} is not part of the model of this run", folder.string(), name);
}

std::string saved_config(const fs::path& folder) {
  return read_manifest(folder).config_yaml;
}

} // namespace pentatron::checkpoint
