#include "pentatron/checkpoint/run_checkpoint.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/progress.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/machines.h"
#include "pentatron/checkpoint/sharded/reader.h"
#include "pentatron/checkpoint/sharded/shard_file.h"
#include "pentatron/checkpoint/state_pieces.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/comm/long_work.h"
#include "pentatron/optim/remainder.h"

namespace pentatron::checkpoint {

namespace {

namespace fs = std::filesystem;

/// State that only a training run has; folders of converted weights lack it.
constexpr const char* kOptimizerSteps = "optimizer_steps";

bool is_mean_of_squares(const StatePiece& piece) {
  return piece.name.ends_with("/exp_avg_sq");
}

/// Whether it is state of the optimizer that another type holds as well, if less exactly.
bool is_mean(const StatePiece& piece) {
  return piece.name.ends_with("/exp_avg") || is_mean_of_squares(piece) ||
         piece.name.ends_with("/momentum_buffer");
}

bool is_average(const std::string& name) {
  return name.ends_with(std::string("/") + optim::kAverage);
}

/// Empty if the piece can be read.
std::string mismatch(const TensorInfo& info, const StatePiece& piece, bool convert) {
  const std::vector<int64_t>& shape = piece.param->spec().shape;
  const at::ScalarType type = piece.data.scalar_type();
  const at::ScalarType stored = scalar_type(info.dtype);
  const bool types_fit =
      stored == type || (convert && at::isFloatingType(stored) && at::isFloatingType(type));
  if (info.shape == shape && types_fit) return {};
  return fmt::format("{} is {} [{}] in the checkpoint, but {} [{}] in this run", piece.name,
                     name_of(info.dtype), fmt::join(info.shape, ", "), c10::toString(type),
                     fmt::join(shape, ", "));
}

/// Reads the piece from the tensor `name`, whose type may be another one.
void read_piece(CheckpointReader& reader, const StatePiece& piece, const std::string& name) {
  at::Tensor target = piece.data;
  const at::ScalarType type = scalar_type(reader.info(name).dtype);
  const bool direct = target.is_cpu() && target.is_contiguous() && type == piece.data.scalar_type();
  const at::Tensor data =
      direct ? target : at::empty(target.sizes(), target.options().device(at::kCPU).dtype(type));
  data.zero_(); // padding
  auto* const bytes = static_cast<std::byte*>(data.mutable_data_ptr());
  const auto element = static_cast<int64_t>(data.element_size());
  for (const PlacedBox& placed :
       placed_boxes(piece.param->spec(), piece.param->where(), piece.range))
    reader.read(name, placed.box,
                {bytes + placed.begin * element,
                 static_cast<size_t>((data.numel() - placed.begin) * element)},
                placed.strides);
  if (!direct) target.copy_(data);
}

/// What read_piece() reads from.
void add_files(const CheckpointReader& reader, const StatePiece& piece, const std::string& name,
               std::set<std::string>& files) {
  for (const PlacedBox& placed :
       placed_boxes(piece.param->spec(), piece.param->where(), piece.range))
    reader.add_files(name, placed.box, files);
}

/// The tensor that holds a parameter best: with weights alone the master copy, where the values
/// were rounded from one and the run keeps more digits.
std::string best_source(const CheckpointReader& reader, const StatePiece& piece) {
  std::string master = piece.name + "/master";
  const bool rounded =
      reader.contains(piece.name) && size_of(reader.info(piece.name).dtype) < sizeof(float);
  return rounded && reader.contains(master) && piece.data.element_size() >= 4 ? master : piece.name;
}

/// Every rank's lines, each once, in order.
std::vector<std::string> all_lines(const std::set<std::string>& own, const comm::Group& world) {
  std::set<std::string> lines;
  for (const std::string& text : comm::gather_text(fmt::format("{}", fmt::join(own, "\n")), world))
    for (const std::string_view line : split(text, '\n'))
      if (!line.empty()) lines.emplace(line);
  return {lines.begin(), lines.end()};
}

std::string listed(const std::vector<std::string>& lines) {
  constexpr size_t kShown = 40;
  const size_t shown = std::min(lines.size(), kShown);
  std::string text = fmt::format(
      "{}", fmt::join(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(shown), "\n  "));
  if (lines.size() > shown) text += fmt::format("\n  and {} more", lines.size() - shown);
  return text;
}

/// "exp_avg of the optimizer's state was saved in F32 and is kept in BFloat16 now", for all ranks.
std::vector<std::string> converted_means(const CheckpointReader& reader,
                                         const std::vector<StatePiece>& state,
                                         const comm::Group& world) {
  std::set<std::string> lines;
  for (const StatePiece& piece : state) {
    if (!is_mean(piece) || !reader.contains(piece.name)) continue;
    const auto stored = reader.info(piece.name).dtype;
    if (scalar_type(stored) == piece.data.scalar_type()) continue;
    lines.insert(fmt::format("{} of the optimizer's state was saved in {} and is kept in {} now",
                             piece.name.substr(piece.name.rfind('/') + 1), name_of(stored),
                             name_of(safe_dtype(piece.data.scalar_type()))));
  }
  return all_lines(lines, world);
}

/// What becomes of a running mean of the weights that only the run or only the checkpoint has; the
/// same on all ranks. Empty: nothing.
std::string average_line(const CheckpointReader& reader, const optim::Optimizer& optimizer,
                         bool with_state) {
  const bool stored = std::ranges::any_of(reader.manifest().tensors,
                                          [](const auto& one) { return is_average(one.first); });
  if (!with_state || stored == optimizer.averages()) return {};
  return stored ? "the running mean of the weights is not loaded: optimizer.ema_decay=0"
                : "the running mean of the weights starts from the weights of this checkpoint";
}

/// Parameters of all ranks that train now or then, but not both. The checkpoint has no state of
/// `thawed` ones, and what it has of `frozen` ones is left.
struct ChangedFamilies {
  std::vector<std::string> thawed, frozen; ///< ascending
};

ChangedFamilies changed_families(const CheckpointReader& reader, const RunParts& parts,
                                 const LoadOptions& options) {
  if (!options.optimizer) return {};
  std::set<std::string> thawed, frozen;
  for (const nn::Shard& shard : parts.store.shards())
    for (const nn::Piece& piece : shard.pieces) {
      const std::string& name = piece.param->name();
      if (!shard.trainable())
        frozen.insert(name);
      else if (options.was_frozen && options.was_frozen(name))
        thawed.insert(name);
    }
  ChangedFamilies changed{all_lines(thawed, parts.world), all_lines(frozen, parts.world)};
  const auto& tensors = reader.manifest().tensors;
  std::erase_if(changed.frozen, [&](const std::string& name) {
    const auto next = tensors.upper_bound(name + "/");
    return next == tensors.end() || !next->first.starts_with(name + "/");
  });
  return changed;
}

/// "a", "a and b", "a and 3 others"
std::string first_of(const std::vector<std::string>& names) {
  if (names.size() < 3) return fmt::format("{}", fmt::join(names, " and "));
  return fmt::format("{} and {} others", names.front(), names.size() - 1);
}

/// Names of tensors without those of the optimizer.
void keep_parameters(std::vector<std::string>& names) {
  std::erase_if(names, [](const std::string& n) { return n.find('/') != std::string::npos; });
}

/// Throws if one of these lines may not pass; returns those that may.
std::vector<std::string> judge(const fs::path& folder, std::vector<std::string> wrong,
                               const std::vector<std::string>& missing,
                               const std::vector<std::string>& unexpected, Strictness strictness) {
  std::vector<std::string> told;
  const bool would_pass = wrong.empty();
  std::vector<std::string>& lacking = strictness == Strictness::kLogAll ? told : wrong;
  for (const std::string& line : missing) lacking.push_back(line);
  std::vector<std::string>& extra = strictness == Strictness::kRaiseAll ? wrong : told;
  for (const std::string& name : unexpected)
    extra.push_back(name + " is not part of the model of this run");
  if (!wrong.empty())
    raise<CheckpointError>(
        "{} does not match the model of this run:\n  {}{}", folder.string(), listed(wrong),
        would_pass ? "\n  try: checkpoint.strictness=log_all to load it anyway" : "");
  return told;
}

/// Whether a classifier has another size in this run, which may begin with a new one.
bool is_replaced(const CheckpointReader& reader, const StatePiece& piece,
                 const LoadOptions& options) {
  return !options.optimizer && piece.name.starts_with(kClassifier) && reader.contains(piece.name) &&
         reader.info(piece.name).shape != piece.param->spec().shape;
}

/// Compares names, shapes and types of all ranks before anything is read. Returns what may pass.
std::vector<std::string> check_tensors(const CheckpointReader& reader,
                                       const std::vector<StatePiece>& pieces, const RunParts& parts,
                                       const LoadOptions& options, const ChangedFamilies& changed) {
  const auto without_state = [&](const StatePiece& piece) {
    return piece.name != piece.param->name() &&
           std::ranges::binary_search(changed.thawed, piece.param->name());
  };
  const auto left_alone = [&](const std::string& name) {
    return std::ranges::binary_search(changed.frozen, name.substr(0, name.find('/')));
  };
  std::set<std::string> missing, wrong, names;
  for (const StatePiece& piece : pieces) {
    names.insert(piece.name);
    if (without_state(piece) || (is_average(piece.name) && !reader.contains(piece.name))) continue;
    if (!reader.contains(piece.name)) {
      missing.insert(piece.name + " is not in the checkpoint");
    } else if (is_replaced(reader, piece, options)) {
      missing.insert(fmt::format("{} is [{}] in the checkpoint, but [{}] in this run", piece.name,
                                 fmt::join(reader.info(piece.name).shape, ", "),
                                 fmt::join(piece.param->spec().shape, ", ")));
    } else if (const std::string text =
                   mismatch(reader.info(piece.name), piece, !options.optimizer || is_mean(piece));
               !text.empty()) {
      wrong.insert(text);
    }
  }
  std::vector<std::string> left = reader.unexpected(all_lines(names, parts.world));
  if (!options.optimizer) keep_parameters(left);
  std::erase_if(left, left_alone);
  std::erase_if(left, is_average);
  return judge(reader.folder(), all_lines(wrong, parts.world), all_lines(missing, parts.world),
               left, options.strictness);
}

/// How reading went on a rank; the worst decides for all.
enum class Reading : int64_t { kWhole, kDamaged, kImpossible };

} // namespace

void read_together(const comm::Group& world, const std::function<void()>& work) {
  Reading own = Reading::kWhole;
  std::string fault;
  try {
    work();
  } catch (const UnreadableFile& error) {
    own = Reading::kImpossible;
    fault = error.what();
  } catch (const OutOfDescriptors& error) {
    own = Reading::kImpossible;
    fault = error.what();
  } catch (const CheckpointError& error) {
    own = Reading::kDamaged;
    fault = error.what();
  } catch (const DataError& error) {
    own = Reading::kDamaged;
    fault = error.what();
  }
  const at::Tensor code = at::full({1}, static_cast<int64_t>(own), at::kLong);
  const auto worst =
      static_cast<Reading>(comm::all_reduce(code, comm::ReduceOp::kMax, world).item<int64_t>());
  if (worst == Reading::kWhole) return;
  const std::vector<std::string> faults = comm::gather_text(own == worst ? fault : "", world);
  for (size_t rank = 0; rank < faults.size(); ++rank) {
    if (faults[rank].empty()) continue;
    const std::string text =
        faults.size() > 1 ? fmt::format("rank {}: {}", rank, faults[rank]) : faults[rank];
    if (worst == Reading::kDamaged) throw DamagedCheckpoint(text);
    if (!parts_of(text).remedy.empty()) throw CheckpointError(text);
    raise<CheckpointError>("{}\n  try: a folder and limits that let every rank read the checkpoint",
                           text);
  }
}

namespace {

/// Elements of a piece that replica `rank` reads: those that it would write (state_pieces.cpp).
nn::FlatRange part_of(const StatePiece& piece, int rank) {
  const int size = piece.replicas.size();
  const int64_t begin = piece.range.size * rank / size;
  return {begin, piece.range.size * (rank + 1) / size - begin};
}

/// What this rank reads of a piece that all `replicas` hold.
StatePiece own_part(const StatePiece& piece) {
  const nn::FlatRange part = part_of(piece, piece.replicas.rank());
  return {piece.param,
          piece.name,
          {piece.range.begin + part.begin, part.size},
          piece.data.narrow(0, part.begin, part.size),
          piece.replicas};
}

/// Completes a piece of which every replica has read its part.
void exchange_parts(const StatePiece& piece) {
  const comm::Group& replicas = piece.replicas;
  const int n = replicas.size();
  if (n == 1) return;
  if (piece.data.scalar_type() == at::kFloat8_e4m3fn) { // groups exchange its bytes
    StatePiece bytes = piece;
    bytes.data = piece.data.view(at::kByte);
    return exchange_parts(bytes);
  }
  const at::Tensor own = own_part(piece).data;
  if (piece.range.size % n == 0) {
    comm::all_gather_into(piece.data, own, 0, replicas).wait();
    return;
  }
  const int64_t most = (piece.range.size + n - 1) / n;
  const at::Tensor all = at::zeros({n * most}, piece.data.options());
  const at::Tensor sent = all.narrow(0, most * replicas.rank(), most);
  sent.narrow(0, 0, own.size(0)).copy_(own);
  comm::all_gather_into(all, sent, 0, replicas).wait();
  for (int rank = 0; rank < n; ++rank) {
    const nn::FlatRange part = part_of(piece, rank);
    piece.data.narrow(0, part.begin, part.size).copy_(all.narrow(0, most * rank, part.size));
  }
}

optim::Optimizer::FirstSteps first_steps(const Json& state, const std::string& where) {
  optim::Optimizer::FirstSteps steps;
  if (const auto it = state.find(kFirstSteps); it != state.end())
    for (const auto& [name, value] : it->items()) steps[name] = json_get<int64_t>(*it, name, where);
  return steps;
}

optim::StateBounds::Bounds state_bounds(const Json& state, const std::string& where) {
  optim::StateBounds::Bounds bounds;
  if (const auto it = state.find(kStateBounds); it != state.end())
    for (const auto& [name, value] : it->items()) bounds[name] = json_get<double>(*it, name, where);
  return bounds;
}

/// Pieces of means that lie in another type than the run keeps them in, where one of the types has
/// scales: they are read as what they stand for. FP8 holds the roots of squares.
class RescaledMeans {
 public:
  RescaledMeans(const CheckpointReader& reader, std::vector<StatePiece>& state,
                optim::StateBounds::Bounds bounds)
      : bounds_(std::move(bounds)) {
    for (StatePiece& piece : state) {
      if (!is_mean(piece) || !reader.contains(piece.name)) continue;
      const at::ScalarType stored = scalar_type(reader.info(piece.name).dtype);
      const at::ScalarType kept = piece.data.scalar_type();
      if (stored == kept || (!optim::is_scaled(stored) && !optim::is_scaled(kept))) continue;
      means_.push_back({piece.name, piece.data, {}, stored, is_mean_of_squares(piece)});
      piece.data = at::empty(piece.data.sizes(), piece.data.options().dtype(at::kFloat));
      means_.back().read = piece.data;
    }
  }

  /// After reading. Collective over the ranks of the run.
  void finish(optim::Optimizer& optimizer) {
    optim::StateBounds::Bounds own;
    for (Mean& mean : means_) {
      const bool root = optim::stores_root(mean.stored, mean.squared);
      const double scale = optim::state_scale(bound_of(mean.name), mean.stored, root);
      mean.read = optim::widened(mean.read, scale, at::kFloat, root);
      double& largest = own[mean.name];
      if (mean.read.numel() > 0) largest = std::max(largest, mean.read.abs().max().item<double>());
    }
    if (!optimizer.bounds().empty()) {
      // Means that come from a type without bounds are bounded by what they are.
      for (const auto& [name, largest] : optimizer.bounds().largest(own))
        bounds_.emplace(name, largest);
      optimizer.set_bounds(bounds_);
    }
    for (const Mean& mean : means_) {
      const at::ScalarType kept = mean.kept.scalar_type();
      const bool root = optim::stores_root(kept, mean.squared);
      optim::store_narrow(mean.kept, mean.read, optim::state_scale(bound_of(mean.name), kept, root),
                          mean.squared);
    }
  }

 private:
  struct Mean {
    std::string name;
    at::Tensor kept, read;
    at::ScalarType stored = at::kFloat;
    bool squared = false;
  };
  double bound_of(const std::string& name) const {
    const auto found = bounds_.find(name);
    return found == bounds_.end() ? 0 : found->second;
  }

  optim::StateBounds::Bounds bounds_;
  std::vector<Mean> means_;
};

/// Master weights that were saved in fp32 and are kept as remainders (optim/remainder.h), or the
/// other way round: they are read as they were saved.
class MovedMasters {
 public:
  MovedMasters(const CheckpointReader& reader, std::vector<StatePiece>& state) {
    for (StatePiece& piece : state) {
      const size_t slash = piece.name.rfind('/');
      const std::string what = piece.name.substr(slash + 1);
      const bool splits = what == kRemainder;
      const std::string other = piece.name.substr(0, slash + 1) + (splits ? kMaster : kRemainder);
      if ((!splits && what != kMaster) || reader.contains(piece.name) || !reader.contains(other))
        continue;
      moved_.push_back({piece.values, piece.data, {}, splits});
      piece.name = other;
      piece.data = at::empty(piece.data.sizes(),
                             piece.data.options().dtype(splits ? at::kFloat : at::kShort));
      moved_.back().read = piece.data;
    }
  }

  /// After reading.
  void finish() const {
    for (const Moved& m : moved_) {
      if (m.splits)
        optim::split_master(m.read, m.values, m.kept);
      else
        at::Tensor(m.kept).copy_(optim::joined(m.values, m.read));
    }
  }

 private:
  static constexpr const char *kMaster = "master", *kRemainder = "remainder";
  struct Moved {
    at::Tensor values, kept, read;
    bool splits = false; ///< read: fp32, kept: remainders
  };
  std::vector<Moved> moved_;
};

std::optional<double> number_in(const Json& state, const char* key) {
  const auto it = state.find(key);
  return it != state.end() && it->is_number() ? std::optional(it->get<double>()) : std::nullopt;
}

} // namespace

void forget_state(optim::Optimizer& optimizer) {
  for (const StatePiece& piece : optimizer_pieces(optimizer)) at::Tensor(piece.data).zero_();
  optimizer.set_steps(0);
  optimizer.set_bounds({});
  optimizer.adopt_values();
}

LoadedRun load_run(const fs::path& folder, const RunParts& parts, const LoadOptions& asked) {
  const double begin_s = monotonic_s();
  const comm::LongWork work(parts.world, "reading " + folder.string());
  std::optional<CheckpointReader> opened;
  read_together(parts.world, [&] { opened.emplace(folder); });
  CheckpointReader& reader = *opened;
  const Manifest& manifest = reader.manifest();
  LoadedRun loaded;
  const bool has_training_state = manifest.state.contains(kOptimizerSteps);
  LoadOptions options = asked;
  options.optimizer = asked.optimizer && has_training_state;
  std::vector<StatePiece> values = value_pieces(parts.store, parts.adapters_only);
  std::vector<StatePiece> state =
      options.optimizer ? optimizer_pieces(parts.optimizer) : std::vector<StatePiece>{};
  const MovedMasters masters(reader, state);
  std::vector<StatePiece> all = values;
  all.insert(all.end(), state.begin(), state.end());
  const ChangedFamilies changed = changed_families(reader, parts, options);
  loaded.told = check_tensors(reader, all, parts, options, changed);
  std::erase_if(values,
                [&](const StatePiece& piece) { return is_replaced(reader, piece, options); });
  for (const std::string& line : converted_means(reader, state, parts.world))
    loaded.told.push_back(line);
  if (!changed.thawed.empty())
    loaded.told.push_back(fmt::format("optimizer state starts at zero for {}: not trained before",
                                      first_of(changed.thawed)));
  if (!changed.frozen.empty())
    loaded.told.push_back(
        fmt::format("optimizer state is not loaded for {}: frozen now", first_of(changed.frozen)));
  if (const std::string line = average_line(reader, parts.optimizer, options.optimizer);
      !line.empty())
    loaded.told.push_back(line);
  RescaledMeans means(reader, state, state_bounds(manifest.state, folder.string()));
  const auto source_of = [&](const StatePiece& value) {
    return options.optimizer ? value.name : best_source(reader, value);
  };
  if (options.node_local) {
    std::set<std::string> needed;
    for (const StatePiece& piece : values)
      if (reader.contains(piece.name)) add_files(reader, piece, source_of(piece), needed);
    for (const StatePiece& piece : state)
      if (reader.contains(piece.name)) add_files(reader, piece, piece.name, needed);
    fetch_files(folder, manifest, needed, Machines(folder, parts.world), parts.world);
  }
  const auto read_all = [&](const std::vector<StatePiece>& pieces, const auto& source) {
    read_together(parts.world, [&] {
      for (const StatePiece& piece : pieces)
        if (reader.contains(piece.name)) read_piece(reader, own_part(piece), source(piece));
    });
    for (const StatePiece& piece : pieces)
      if (reader.contains(piece.name)) exchange_parts(piece);
  };
  int64_t total_bytes = 0;
  for (const StatePiece& piece : all)
    total_bytes += static_cast<int64_t>(own_part(piece).data.nbytes());
  std::optional<pentatron::Progress> shown;
  if (parts.world.rank() == 0)
    shown.emplace("reading " + folder.filename().string(), total_bytes,
                  pentatron::Progress::Options{.unit = pentatron::Progress::Unit::kBytes});
  reader.on_progress([&] {
    work.progress();
    if (shown) shown->update(std::min(static_cast<int64_t>(reader.bytes_read()), total_bytes));
  });
  read_all(values, source_of);
  parts.optimizer.adopt_values();
  read_all(state, [](const StatePiece& piece) { return piece.name; });
  if (options.optimizer) means.finish(parts.optimizer);
  masters.finish();
  parts.store.publish_all_values();
  parts.store.wait_values();
  shown.reset();
  log::info("read {} of {} in {}", format_bytes(static_cast<double>(reader.bytes_read())),
            folder.string(), format_duration(monotonic_s() - begin_s));
  loaded.state.config_yaml = manifest.config_yaml;
  loaded.state.tokenizer = manifest.tokenizer;
  if (!has_training_state) return loaded;
  const std::string where = folder.string();
  if (options.optimizer) {
    const auto steps = json_get<int64_t>(manifest.state, kOptimizerSteps, where);
    optim::Optimizer::FirstSteps first = first_steps(manifest.state, where);
    for (const std::string& name : changed.thawed) first[name] = steps;
    parts.optimizer.set_steps(steps, std::move(first));
  }
  loaded.state.iteration = manifest.iteration;
  loaded.state.consumed_samples = json_get<int64_t>(manifest.state, "consumed_samples", where);
  loaded.state.skipped_iterations = json_get<int64_t>(manifest.state, "skipped_iterations", where);
  loaded.state.nan_iterations = json_get<int64_t>(manifest.state, "nan_iterations", where);
  if (const auto found = manifest.state.find("loss_scale"); found != manifest.state.end())
    loaded.state.loss_scale = {.scale = json_get<double>(*found, "scale", where),
                               .growth_tracker = json_get<int64_t>(*found, "growth_tracker", where),
                               .hysteresis_tracker =
                                   json_get<int64_t>(*found, "hysteresis_tracker", where)};
  if (manifest.state.contains("held_iterations")) {
    loaded.state.held_iterations = json_get<int64_t>(manifest.state, "held_iterations", where);
    loaded.state.held_samples = json_get<int64_t>(manifest.state, "held_samples", where);
  }
  loaded.state.expert_choices = expert_choices(manifest, where);
  loaded.state.loss = number_in(manifest.state, "loss");
  loaded.state.validation_loss = number_in(manifest.state, "validation_loss");
  return loaded;
}

void check_parameters(const fs::path& folder, const models::ParamSpecs& specs,
                      Strictness strictness) {
  const Manifest manifest = read_manifest(folder);
  std::vector<std::string> wrong, missing, left;
  for (const auto& [name, spec] : specs) {
    const auto found = manifest.tensors.find(name);
    if (found == manifest.tensors.end())
      missing.push_back(name + " is not in the checkpoint");
    else if (found->second.shape != spec.shape)
      wrong.push_back(fmt::format("{} is [{}] in the checkpoint, but [{}] in this run", name,
                                  fmt::join(found->second.shape, ", "),
                                  fmt::join(spec.shape, ", ")));
  }
  for (const auto& [name, info] : manifest.tensors)
    if (!specs.contains(name)) left.push_back(name);
  keep_parameters(left);
  judge(folder, std::move(wrong), missing, left, strictness);
}

SavedRun saved_run(const fs::path& folder) {
  const Manifest manifest = read_manifest(folder);
  return {.config_yaml = manifest.config_yaml,
          .has_training_state = manifest.state.contains(kOptimizerSteps),
          .tokenizer = manifest.tokenizer};
}

} // namespace pentatron::checkpoint
