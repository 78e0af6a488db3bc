#include "pentatron/trainer/run_data.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/machine_store.h"
#include "pentatron/base/naming.h"
#include "pentatron/comm/control/connection.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/comm/long_work.h"
#include "pentatron/models/model.h"
#include "pentatron/models/model_spec.h"
#include "pentatron/trainer/model_tokenizer.h"

namespace pentatron::trainer {

namespace {

/// `store` and the others: see data::DatasetContext.
RunData open_data(const Config& config, bool writes_nothing, MachineStore* store,
                  const std::function<void()>& working) {
  const bool batches = config.dataset.type == data::DatasetType::kBatches;
  const int64_t iterations = total_iterations(config.train);
  RunData run;
  run.tokenizer = naming("tokenizer.path=", config.tokenizer.path,
                         [&] { return data::shared_tokenizer(config.tokenizer); });
  run.samples = batch_schedule(config.train).samples_after(iterations);
  if (config.dataset.type == data::DatasetType::kText) check_vocabulary(config, *run.tokenizer);
  const int64_t evaluation = config.train.eval_iters * config.train.global_batch_size;
  data::DatasetContext context{
      .sequence_length = batches ? 0 : config.train.seq_length,
      .vocab_size = config.model.vocab_size,
      .fields = models::model_spec(config.model).fields,
      .tokenizer = run.tokenizer,
      .label_names = config.model.label_names,
      .test_samples = evaluation,
      .writes_nothing = writes_nothing,
      .store = store,
      .reading = {.working = working, .draw = config.logger.progress != ProgressBar::kOff}};
  // Where no step is left it only evaluates, and any number of training samples will do.
  context.train_samples = std::max<int64_t>(run.samples, 1);
  context.validation_samples = config.train.eval_interval > 0
                                   ? (iterations / config.train.eval_interval + 1) * evaluation
                                   : 0;
  if (config.dataset.type == data::DatasetType::kSft && !config.tokenizer.path.empty())
    context.render_chat = data::open_chat_template(config.tokenizer.path, config.dataset.chat_date);
  run.datasets = data::open_datasets(config.dataset, context);
  if (run.datasets.train == nullptr) {
    const std::string problem = fmt::format(
        "dataset.split={} leaves less than one training sample\n  try: dataset.split=95,5,0",
        config.dataset.split);
    throw ConfigError(run.datasets.report ? run.datasets.report->with_skips(problem) : problem);
  }
  const std::optional<int64_t> size = run.datasets.train->size();
  if (size && run.samples > *size) {
    raise<ConfigError>(
        "train.train_iters={} needs {} samples, but {} has {}\n  try: train.train_iters={}",
        iterations, run.samples, config.dataset.path, *size,
        *size / config.train.global_batch_size);
  }
  return run;
}

/// Null if the processes of this machine share no order of samples.
std::shared_ptr<MachineStore> order_store(const Config& config, const comm::Group& world) {
  const data::DatasetConfig& dataset = config.dataset;
  if (dataset.type != data::DatasetType::kIndexed ||
      dataset.order != data::SampleOrder::kMegatron || !dataset.data_cache_path.empty() ||
      world.size() == 1)
    return nullptr;
  // Every rank makes a store, and that of the first rank of a machine is used.
  std::shared_ptr<MachineStore> own;
  std::string own_address, fault;
  try {
    std::error_code error;
    const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
    own = MachineStore::make({"/dev/shm", error ? "/tmp" : temporary});
    own_address = own->address();
  } catch (const Error& failure) {
    fault = failure.what();
  }
  const std::string machine = comm::control::machine_identity();
  const std::string here = "a rank's report";
  std::set<int64_t> processes;
  std::string address;
  for (const std::string& text : comm::gather_text(
           dump_json({{"machine", machine}, {"process", ::getpid()}, {"address", own_address}}),
           world)) {
    const Json peer = parse_json(text, here);
    if (machine.empty() || json_get<std::string>(peer, "machine", here) != machine) continue;
    processes.insert(json_get<int64_t>(peer, "process", here));
    if (address.empty()) address = json_get<std::string>(peer, "address", here);
  }
  std::shared_ptr<MachineStore> store;
  const auto take = [&] {
    if (address.empty()) throw Error(fault);
    store = address == own_address ? own : MachineStore::open(address);
  };
  // `own` lives until all have opened it.
  const std::string first = comm::first_error(world, processes.size() > 1, take);
  if (!first.empty())
    log::shared_warning("the sample order takes memory in every process that cannot share it: {}\n"
                        "  try: dataset.data_cache_path=FOLDER",
                        first);
  return store;
}

} // namespace

RunData open_run_data(const Config& config) {
  return open_data(config, /*writes_nothing=*/true, nullptr, {});
}

RunData open_run_data(const Config& config, const comm::Group& world) {
  const std::shared_ptr<MachineStore> store = order_store(config, world);
  const comm::LongWork work(world, "opening the data");
  return open_data(config, /*writes_nothing=*/false, store.get(), [&] { work.progress(); });
}

data::LoaderOptions loader_options(const Config& config, const comm::Group& dp,
                                   const models::ModelSpec& spec, int64_t consumed) {
  const parallelize::ParallelConfig& parallel = config.parallel;
  const int64_t tensor_ranks = parallel.sequence_parallel ? parallel.tensor_model_parallel_size : 1;
  const int64_t cp = parallel.context_parallel_size;
  return {.global_batch_size = config.train.global_batch_size,
          .micro_batch_size = config.train.micro_batch_size,
          .rank = dp.rank(),
          .size = dp.size(),
          .consumed_samples = consumed,
          .prefetch = config.dataset.prefetch,
          .remove_padding = config.train.remove_padding,
          .token_multiple = tensor_ranks,
          // Context ranks cut each sample into two chunks for each of them.
          .sample_multiple = cp > 1 ? 2 * cp * tensor_ranks : 1,
          .shifted = spec.shifted_fields,
          .global_batch_size_at = [schedule = batch_schedule(config.train)](int64_t samples) {
            return schedule.at_samples(samples);
          }};
}

} // namespace pentatron::trainer
