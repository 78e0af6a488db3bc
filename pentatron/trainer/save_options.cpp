#include "pentatron/trainer/save_options.h"

#include "pentatron/trainer/evaluation.h"

namespace pentatron::trainer {

checkpoint::SaveOptions save_options(const CheckpointConfig& c) {
  return {.dir = c.save,
          .retention = {.keep_last = c.keep,
                        .keep_every = c.keep_every,
                        .keep_best = c.keep_best,
                        .metric = c.keep_best_metric,
                        .lower_is_better = lower_is_better(c.keep_best_metric),
                        .node_local = c.node_local},
          .async = c.async_save,
          .parity = c.parity,
          .node_local = c.node_local,
          .staging_bytes = static_cast<uint64_t>(c.staging_limit) << 20};
}

} // namespace pentatron::trainer
