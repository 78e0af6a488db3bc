/// The data and the tokenizer of a run, opened and compared with its configuration.
#pragma once

#include <cstdint>
#include <memory>

#include "pentatron/base/machine_store.h"
#include "pentatron/comm/group.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/loader.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/models/model_spec.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

struct RunData {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  data::Datasets datasets; ///< with training data
  int64_t samples = 0;     ///< that the run takes from the training data
};

/// Throws ConfigError or DataError if the data cannot be read or is not enough. `writes_nothing`:
/// no file in dataset.data_cache_path. `store`: of the processes of this machine, see
/// data::DatasetContext.
RunData open_run_data(const Config& config, bool writes_nothing = false,
                      MachineStore* store = nullptr);

/// Where the ranks of this machine share the order of samples, if they are several processes that
/// need one and dataset.data_cache_path names no folder; else null. In /dev/shm, and on the disk of
/// TMPDIR or /tmp. Collective; all ranks log a warning if one of them can take no part.
std::shared_ptr<MachineStore> order_store(const Config& config, const comm::Group& world);

/// How a data-parallel rank loads training samples, after so many that are consumed.
data::LoaderOptions loader_options(const Config& config, const comm::Group& dp,
                                   const models::ModelSpec& spec, int64_t consumed);

} // namespace pentatron::trainer
