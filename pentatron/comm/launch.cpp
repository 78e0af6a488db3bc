#include "pentatron/comm/launch.h"

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

#include <charconv>
#include <limits>
#include <optional>
#include <unistd.h>

namespace pentatron::comm {

namespace {

constexpr int64_t kMost = std::numeric_limits<int>::max();

/// The variables of one launcher.
class Variables {
 public:
  Variables(const Environment& environment, std::string_view launcher, std::string_view remedy)
      : environment_(environment), launcher_(launcher), remedy_(remedy) {}

  bool has(std::string_view name) const { return environment_.contains(name); }

  std::string text(std::string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? std::string() : found->second;
  }

  std::optional<int> number(std::string_view name, int64_t lowest, int64_t highest) const {
    const auto found = environment_.find(name);
    if (found == environment_.end()) return std::nullopt;
    const std::string& text = found->second;
    int64_t value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < lowest ||
        value > highest)
      raise<ConfigError>("{4} set {0}={1}, which is not an integer from {2} to {3}\n  try: {5}",
                         name, excerpt(text), lowest, highest, launcher_, remedy_);
    return static_cast<int>(value);
  }

  int needed(std::string_view name, std::string_view because, int64_t lowest,
             int64_t highest = kMost) const {
    const std::optional<int> value = number(name, lowest, highest);
    if (!value)
      raise<ConfigError>("{} is set but {} is not, and {} sets both\n  try: {}", because, name,
                         launcher_, remedy_);
    return *value;
  }

 private:
  const Environment& environment_;
  std::string_view launcher_, remedy_;
};

void check_local(const Launch& launch, std::string_view local_rank, std::string_view local_size) {
  if (launch.local_size > launch.world_size)
    raise<ConfigError>("{}={} is more than the {} ranks of the world\n  try: start the program "
                       "with only the launcher",
                       local_size, launch.local_size, launch.world_size);
  if (launch.local_rank >= launch.local_size || launch.local_rank > launch.rank)
    raise<ConfigError>("{}={} does not fit rank {} on a machine with {} ranks\n  try: start the "
                       "program with only the launcher",
                       local_rank, launch.local_rank, launch.rank, launch.local_size);
}

std::optional<Launch> from_torchrun(const Environment& environment) {
  const Variables variables(
      environment, "torchrun",
      "torchrun --nproc-per-node=N pentatron ..., or unset RANK, WORLD_SIZE and LOCAL_RANK");
  std::string_view first;
  for (const std::string_view name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"})
    if (first.empty() && variables.has(name)) first = name;
  if (first.empty()) return std::nullopt;
  Launch launch{.launcher = Launcher::kTorchrun};
  launch.world_size = variables.needed("WORLD_SIZE", first, 1);
  launch.rank = variables.needed("RANK", first, 0, launch.world_size - 1);
  launch.local_rank = variables.number("LOCAL_RANK", 0, kMost).value_or(0);
  launch.local_size = 1;
  if (launch.world_size > 1) {
    launch.local_rank = variables.needed("LOCAL_RANK", "WORLD_SIZE", 0);
    if (launch.local_rank == launch.rank && !variables.has("LOCAL_WORLD_SIZE"))
      launch.local_size = launch.world_size;
    else
      launch.local_size = variables.needed("LOCAL_WORLD_SIZE", "LOCAL_RANK", 1);
    if (!variables.has("MASTER_ADDR"))
      raise<ConfigError>("WORLD_SIZE={} is set and MASTER_ADDR is not, so the ranks cannot find "
                         "each other\n  try: MASTER_ADDR=127.0.0.1 MASTER_PORT=29500",
                         launch.world_size);
    variables.needed("MASTER_PORT", "MASTER_ADDR", 1, 65535);
  }
  check_local(launch, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  launch.job = variables.text("TORCHELASTIC_RUN_ID");
  return launch;
}

std::optional<Launch> from_mpirun(const Environment& environment) {
  const Variables variables(environment, "mpirun", "mpirun -n N pentatron ...");
  std::string_view first;
  for (const std::string_view name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})
    if (first.empty() && variables.has(name)) first = name;
  if (first.empty()) return std::nullopt;
  Launch launch{.launcher = Launcher::kMpirun};
  launch.world_size = variables.needed("OMPI_COMM_WORLD_SIZE", first, 1);
  launch.rank = variables.needed("OMPI_COMM_WORLD_RANK", first, 0, launch.world_size - 1);
  launch.local_rank = variables.needed("OMPI_COMM_WORLD_LOCAL_RANK", first, 0);
  launch.local_size = variables.needed("OMPI_COMM_WORLD_LOCAL_SIZE", first, 1);
  check_local(launch, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  launch.job = variables.text("PMIX_NAMESPACE");
  return launch;
}

/// The count of machine `node` in "4(x2),3": two machines of 4 tasks, then one of 3.
std::optional<int> tasks_on_node(std::string_view list, int node) {
  for (const std::string_view part : split(list, ',')) {
    int tasks = 0, repeats = 1;
    const char* const end = part.data() + part.size();
    auto read = std::from_chars(part.data(), end, tasks);
    if (read.ec != std::errc() || tasks < 1) return std::nullopt;
    if (read.ptr != end) {
      const std::string_view rest(read.ptr, static_cast<size_t>(end - read.ptr));
      if (!rest.starts_with("(x") || !rest.ends_with(")")) return std::nullopt;
      read = std::from_chars(read.ptr + 2, end - 1, repeats);
      if (read.ec != std::errc() || read.ptr != end - 1 || repeats < 1) return std::nullopt;
    }
    if (node < repeats) return tasks;
    node -= repeats;
  }
  return std::nullopt;
}

std::optional<Launch> from_srun(const Environment& environment) {
  const Variables variables(environment, "srun", "srun -n N pentatron ...");
  // sbatch sets SLURM_PROCID=0 for its shell; only a step has a number.
  if (!variables.has("SLURM_STEP_ID") && !variables.has("SLURM_STEPID")) return std::nullopt;
  const bool own_size = variables.has("SLURM_STEP_NUM_TASKS");
  Launch launch{.launcher = Launcher::kSrun};
  launch.world_size =
      variables.needed(own_size ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "SLURM_STEP_ID", 1);
  launch.rank = variables.needed("SLURM_PROCID", "SLURM_STEP_ID", 0, launch.world_size - 1);
  launch.local_rank = variables.needed("SLURM_LOCALID", "SLURM_STEP_ID", 0);
  const int node = variables.number("SLURM_NODEID", 0, kMost).value_or(0);
  const std::string_view list = variables.has("SLURM_STEP_TASKS_PER_NODE")
                                    ? "SLURM_STEP_TASKS_PER_NODE"
                                    : "SLURM_TASKS_PER_NODE";
  launch.local_size = launch.world_size;
  if (variables.has(list)) {
    const std::optional<int> tasks = tasks_on_node(variables.text(list), node);
    if (!tasks)
      raise<ConfigError>(
          "{}={} does not contain the number of tasks of node {}\n  try: srun -n N pentatron ...",
          list, excerpt(variables.text(list)), node);
    launch.local_size = *tasks;
  }
  check_local(launch, "SLURM_LOCALID", list);
  launch.job = variables.text("SLURM_JOB_ID") + "." +
               variables.text(variables.has("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID");
  return launch;
}

void check_agreement(const Launch& torchrun, const Launch& other, std::string_view rank_name,
                     std::string_view size_name) {
  const bool rank_differs = torchrun.rank != other.rank;
  if (!rank_differs && torchrun.world_size == other.world_size) return;
  raise<ConfigError>(
      "{}={} contradicts {}={}: two launchers number the ranks\n  try: unset RANK "
      "WORLD_SIZE LOCAL_RANK, or start the program with one launcher",
      rank_differs ? "RANK" : "WORLD_SIZE", rank_differs ? torchrun.rank : torchrun.world_size,
      rank_differs ? rank_name : size_name, rank_differs ? other.rank : other.world_size);
}

Launch choose(const Environment& environment) {
  const std::optional<Launch> torchrun = from_torchrun(environment);
  if (torchrun && environment.contains("TORCHELASTIC_RUN_ID")) return *torchrun;
  const std::optional<Launch> mpirun = from_mpirun(environment);
  if (mpirun) {
    if (torchrun)
      check_agreement(*torchrun, *mpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    return *mpirun;
  }
  const std::optional<Launch> srun = from_srun(environment);
  if (srun && torchrun) check_agreement(*torchrun, *srun, "SLURM_PROCID", "SLURM_NTASKS");
  if (srun) return *srun;
  return torchrun.value_or(Launch{});
}

} // namespace

std::string Launch::describe() const {
  if (launcher == Launcher::kNone) return "one rank without a launcher";
  return fmt::format("rank {} of {} by {}", rank, world_size, config::to_string(launcher));
}

Launch detect_launch(const Environment& environment) {
  Launch launch = choose(environment);
  const Variables variables(environment, "torchrun", "MASTER_PORT=29500");
  if (launch.launcher != Launcher::kNone && variables.has("MASTER_ADDR")) {
    launch.master_addr = variables.text("MASTER_ADDR");
    if (launch.master_addr.empty())
      raise<ConfigError>("MASTER_ADDR is empty\n  try: MASTER_ADDR=127.0.0.1");
    launch.master_port = variables.needed("MASTER_PORT", "MASTER_ADDR", 1, 65535);
  }
  return launch;
}

Launch detect_launch() {
  return detect_launch(process_environment());
}

Environment process_environment() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

} // namespace pentatron::comm
