#include "tests/roofline/step.h"

#include <ATen/ATen.h>

#include "pentatron/data/loader.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/families.h"
#include "pentatron/trainer/offload.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/run_data.h"
#include "pentatron/trainer/runtime.h"
#include "pentatron/trainer/step.h"
#include "pentatron/trainer/step_flops.h"
#include "tests/roofline/accesses.h"
#include "tests/roofline/device.h"
#include "tests/roofline/memory.h"

namespace pentatron::roofline {

RecordedStep record_step(std::vector<std::string> settings, int number) {
  open_device();
  empty_cache();
  watch_kernels();
  std::vector<std::string> all = {"dataset.type=mock", "device=cuda", "kernels=order"};
  all.insert(all.end(), settings.begin(), settings.end());
  const trainer::Config config = trainer::load_config(std::nullopt, all, {}, 1);
  const trainer::RunData data = trainer::open_run_data(config);
  const comm::Group world;
  const parallelize::PipelinePlan plan = trainer::pipeline_plan(config);
  const comm::ParallelGroups groups =
      parallelize::make_groups(world, config.parallel, &config.ddp, config.model, plan);
  const at::Device device = trainer::choose_device(config.device);
  parallelize::TrainingModel model = parallelize::make_training_model(
      {.config = config.model,
       .build = {.dtype = trainer::scalar_type(config.dtype),
                 .tp = {groups.tp(), false, config.comm_overlap.tp},
                 .context =
                     parallelize::context_parallel(config.parallel, config.comm_overlap.cp, groups),
                 .chunks = {.recompute = trainer::recomputation(config.train),
                            .offload = trainer::activation_offload(config.offload, device),
                            .offloaded = config.offload.num_layers}},
       .device = device,
       .max_sequence = data.datasets.train->sequence_length(),
       .prepare = [&](nn::ParamList& params) { trainer::plan_families(params, config, device); }},
      plan, config.ddp, groups);
  optim::Optimizer optimizer(config.optimizer, model.store->shards(), world,
                             trainer::optimizer_offload(config.offload, device));
  trainer::Stepper stepper(model, optimizer, groups, plan);
  data::Loader loader(data.datasets.train,
                      trainer::loader_options(config, groups.dp(), model.model->spec(), 0));
  const trainer::StepOptions options{.lr = 1e-4,
                                     .weight_decay = config.optimizer.weight_decay,
                                     .clip_grad = config.optimizer.clip_grad};
  std::vector<int64_t> taken;
  const auto step = [&](const data::StepData& batch) {
    const int64_t before = segments();
    trainer::StepResult result = stepper.step(batch, options);
    taken.push_back(segments() - before);
    return result;
  };
  while (std::ssize(taken) + 1 < number) step(loader.next());
  reset_peak();
  begin_recording();
  const data::StepData batch = loader.next();
  const trainer::StepResult result = step(batch);
  RecordedStep recorded{
      .launches = end_recording(), .peak_bytes = peak_bytes(), .segments = std::move(taken)};
  for (const data::StreamTotals& totals : result.totals) recorded.tokens += totals.tokens;
  recorded.model_flops = trainer::FlopCounter(config, *model.model, std::ssize(plan.stages))
                             .step(batch.global_batch_size, result.totals, result.head_rows)
                             .model;
  for (const nn::Param& param : model.model->params()) recorded.parameters += param.value().numel();
  return recorded;
}

} // namespace pentatron::roofline
