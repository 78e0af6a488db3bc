// The host of a training step touches no memory of the GPU: it has none here, so whoever reads or
// writes it crashes. Each key of the configuration in a process of its own.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/roofline/memory.h"
#include "tests/roofline/step.h"
#include "tests/trainer/key_effects.h"

namespace pentatron::roofline {
namespace {

const std::vector<std::string> kTiny = {
    "dtype=bf16",
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.num_attention_heads=4",
    "model.vocab_size=257",
    "model.max_position_embeddings=64",
    "train.seq_length=32",
    "train.micro_batch_size=2",
    "train.global_batch_size=4",
};

enum class End { kDone, kError, kCrash };

/// How two steps with these settings end. Errors are the device's, on which only some operators of
/// LibTorch have shapes, and of keys that need files.
End end_of(const std::vector<std::string>& settings) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    try {
      hide_device_memory();
      record_step(settings);
      _exit(0);
    } catch (const std::exception&) {
      _exit(1);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status)) return End::kCrash;
  return WEXITSTATUS(status) == 0 ? End::kDone : End::kError;
}

/// Of CI: those whose rules have most to do with the host.
bool chosen(const std::string& key) {
  static const bool all = std::getenv("PENTATRON_MATRIX") != nullptr &&
                          std::getenv("PENTATRON_MATRIX") == std::string_view("full");
  static const std::set<std::string> few = {"model.mtp_num_layers",
                                            "optimizer.ema_decay",
                                            "optimizer.exp_avg_dtype",
                                            "optimizer.exp_avg_sq_dtype",
                                            "optimizer.optimizer",
                                            "optimizer.qk_clip",
                                            "optimizer.sgd_nesterov",
                                            "optimizer.muon_nesterov",
                                            "optimizer.adafactor_eps",
                                            "optimizer.param_groups",
                                            "peft.type",
                                            "train.recompute",
                                            "train.freeze",
                                            "optimizer.lion_beta1",
                                            "optimizer.adaptive_muon_eps",
                                            "model.multi_latent_attention"};
  return all || few.contains(key) || key.starts_with("model.moe");
}

TEST(HostMemory, OfTheDeviceIsNotTouchedWithAnyKey) {
  int runs = 0, done = 0;
  for (const auto& [key, effect] : trainer::kEffects) {
    std::vector<std::string> settings = kTiny;
    settings.insert(settings.end(), effect.with.begin(), effect.with.end());
    settings.emplace_back(effect.change);
    if (!chosen(key) || std::ranges::any_of(settings, [](const std::string& setting) {
          return setting.find("{}") != std::string::npos; // a folder with files
        }))
      continue;
    const End end = end_of(settings);
    EXPECT_NE(end, End::kCrash) << key;
    ++runs;
    if (end == End::kDone) ++done;
  }
  EXPECT_GT(runs, 30);
  EXPECT_GE(done, 0.7 * runs) << "runs that came to their end";
}

/// A run that touches such memory is seen to crash.
TEST(HostMemory, IsWatched) {
  const pid_t child = fork();
  if (child == 0) {
    void* const p = reserve(4096);
    hide_device_memory();
    _exit(*static_cast<volatile char*>(p));
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

} // namespace
} // namespace pentatron::roofline
