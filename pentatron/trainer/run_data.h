/// The data and the tokenizer of a run, opened and compared with its configuration.
#pragma once

#include <cstdint>
#include <memory>

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

/// Throws ConfigError or DataError if the data cannot be read or is not enough. Writes no file, not
/// even in dataset.data_cache_path.
RunData open_run_data(const Config& config);

/// The same as a rank of a run. Collective: where dataset.data_cache_path names no folder,
/// processes of one machine that need an order of samples share it, in /dev/shm or on the disk of
/// TMPDIR or /tmp; all ranks log a warning if one of them can take no part. While a rank opens
/// data and tells of progress (ReadingProgress), others may wait longer than dist.timeout_s.
RunData open_run_data(const Config& config, const comm::Group& world);

/// How a data-parallel rank loads training samples, after so many that are consumed.
data::LoaderOptions loader_options(const Config& config, const comm::Group& dp,
                                   const models::ModelSpec& spec, int64_t consumed);

} // namespace pentatron::trainer
