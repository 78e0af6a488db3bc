/// The model of the tests of memory estimates.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {

/// Large enough that blocks and small tensors do not count. `{}` stands for a file of text.
inline Config small_model(std::vector<std::string> more, int ranks = 1) {
  more.insert(more.begin(),
              {"model.num_layers=4", "model.hidden_size=256", "model.num_attention_heads=4",
               "model.ffn_hidden_size=1024", "model.vocab_size=8192", "train.seq_length=128",
               "train.micro_batch_size=4", "train.global_batch_size=8", "train.train_iters=2",
               "dataset.type=mock"});
  if (std::ranges::find(more, "model.type=t5") == more.end())
    more.insert(more.begin(), "model.max_position_embeddings=128");
  return test::tiny("unused", std::move(more), ranks);
}

/// All but the upper half of the layers.
inline const std::string kFrozen = "train.freeze=[\"embedding.*\", \"layers.[01].*\", \"final*\"]";

} // namespace pentatron::trainer
