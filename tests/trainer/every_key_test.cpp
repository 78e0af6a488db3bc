// Every key of the configuration does something: a run of three steps with it differs from one
// without it. A key that is missing in the table fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <regex>
#include <set>

#include <unistd.h>

#include <fmt/ranges.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/trainer/runtime.h"
#include "tests/support/ranks.h"
#include "tests/trainer/key_effects.h"
#include "tests/trainer/key_files.h"
#include "tests/trainer/layout_runs.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;

class EveryKey : public testing::Test {
 protected:
  /// Everything about a run that somebody can see, but times.
  std::string fingerprint(std::vector<std::string> settings) {
    settings = files.fresh(std::move(settings));
    std::string print;
    testing::internal::CaptureStderr();
    try {
      const Config config = files.config(settings);
      const test::Trace trace = test::run(config);
      for (const Json& step : trace.steps) {
        for (const char* key :
             {"loss", "grad_norm", "learning_rate", "consumed_samples", "global_batch_size"})
          print += step[key].dump() + " ";
        print +=
            fmt::format("{:.6g} {:.6g}\n", step["hfu"].get<double>() / step["mfu"].get<double>(),
                        step["tflops"].get<double>() / step["mfu"].get<double>());
      }
      for (const auto& [name, weight] : trace.weights) {
        const auto* bytes = static_cast<const std::byte*>(weight.data_ptr());
        print +=
            fmt::format("{} {} {:x}\n", name, weight.numel(), crc32c({bytes, weight.nbytes()}));
      }
      const Evaluation validation = trace.report.validation.value_or(Evaluation{});
      print += fmt::format("validation {} {}\n", validation.loss.value_or(-1),
                           validation.figures.size());
    } catch (const Error& error) {
      print += std::string("error: ") + error.what() + "\n";
    }
    const std::string console = testing::internal::GetCapturedStderr();
    for (const char* shown : {"/3 | loss ", "lm loss: ", "\r\033[K"})
      for (size_t at = 0; (at = console.find(shown, at)) != std::string::npos; ++at)
        print += fmt::format("{} on the console\n", shown);
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(scratch.path)) {
      const std::string name = fs::relative(entry.path(), scratch.path).string();
      if (name.find("mlruns/") != std::string::npos) continue; // with an id of every run
      if (entry.is_directory() || entry.path().extension() == ".svg") files.insert(name);
    }
    for (const std::string& file : files) print += file + "\n";
    if (const fs::path file = scratch.path / "log/run.json"; fs::exists(file))
      print += read_json(file).at("name").dump() + "\n";
    // kernels=auto also names classes of other types, where one entry can run.
    if (content_of(scratch.path / "log/kernels.json").find("cast float64") != std::string::npos)
      print += "kernels of all types\n";
    if (const fs::path file = scratch.path / "log/trace.json"; fs::exists(file)) {
      const Json trace = read_json(file);
      for (const Json& event : trace.at("traceEvents"))
        if (event.value("cat", "") == "iteration") print += event.at("name").dump() + "\n";
    }
    return print;
  }

  KeyFiles files;
  const test::Scratch& scratch = files.scratch;
};

/// The passes that each rank ran in the step that was traced, in their order: "0F0 0F1 0I0 ...".
std::string passes_in(const fs::path& trace) {
  std::map<int, std::map<double, std::string>> passes; // by rank and time
  const Json content = read_json(trace);
  for (const Json& event : content.at("traceEvents"))
    if (event.contains("args") && event["args"].contains("microbatch"))
      passes[event.at("pid")][event.at("ts")] = event.at("name");
  std::string text;
  for (const auto& [rank, names] : passes) {
    for (const auto& [time, name] : names) text += name + " ";
    text += "\n";
  }
  return text;
}

/// The exchanges that each rank began in the step that was traced, in their order, with the bytes.
std::string exchanges_in(const fs::path& trace) {
  std::map<int, std::map<double, std::string>> exchanges; // by rank and time
  const Json content = read_json(trace);
  for (const Json& event : content.at("traceEvents"))
    if (event.value("cat", "") == "communication")
      exchanges[event.at("pid")][event.at("ts")] +=
          fmt::format("{} of {} bytes\n", event.at("name").get<std::string>(),
                      event.at("args").at("bytes").get<int64_t>());
  std::string text;
  for (const auto& [rank, begun] : exchanges) {
    text += fmt::format("rank {}\n", rank);
    for (const auto& [time, exchange] : begun) text += exchange;
  }
  return text;
}

/// Trains on four ranks in `scratch`, where the second step is traced. Returns what each rank
/// holds. Not the name of the schedule, which is that of the configuration.
std::vector<std::string> run_on_four_ranks(const std::vector<std::string>& settings,
                                           const test::Scratch& scratch) {
  std::string keys = "train.train_iters=2 train.eval_interval=0 profiling.trace=true "
                     "profiling.trace_start=2 profiling.trace_steps=1";
  for (const std::string& setting : settings) keys += " " + setting;
  test::write_documents(scratch / "documents.jsonl", 400);
  std::vector<std::string> prints(4);
  Config config = test::layout_config("gpt2", keys, 4, scratch);
  config.logger.dir = scratch / "log";
  test::run_ranks(4, [&](const comm::Group& world) {
    Trainer trainer(config, world);
    std::string& print = prints[static_cast<size_t>(world.rank())];
    print = std::regex_replace(trainer.describe(), std::regex("schedule [a-z0-9_]+; "), "") + "\n";
    print += fmt::format("loss {}\n", trainer.run().last_loss.value());
    for (const nn::Param& param : trainer.model().model.params())
      print += fmt::format("{} {} {}\n", param.name(), fmt::join(param.shape(), "x"),
                           static_cast<int>(param.spec().placement("tp").kind));
  });
  return prints;
}

/// What four ranks hold and what they compute in one step.
std::string layout_print(const std::vector<std::string>& settings) {
  const test::Scratch scratch;
  std::vector<std::string> prints = run_on_four_ranks(settings, scratch);
  prints.push_back(passes_in(scratch / "log/trace.json"));
  return fmt::format("{}", fmt::join(prints, "\n"));
}

/// What four ranks exchange in one step.
std::string exchange_print(const std::vector<std::string>& settings) {
  const test::Scratch scratch;
  run_on_four_ranks(settings, scratch);
  return exchanges_in(scratch / "log/trace.json");
}

/// Each key changes what `print` says of a run with it; equal runs print the same.
void expect_effects(const std::map<std::string, Effect>& effects,
                    const std::function<std::string(const std::vector<std::string>&)>& print) {
  std::map<std::vector<std::string>, std::string> without;
  for (const auto& [key, effect] : effects) {
    auto [entry, fresh] = without.try_emplace(effect.with);
    if (fresh) {
      entry->second = print(effect.with);
      EXPECT_EQ(entry->second, print(effect.with)) << "two equal runs differ";
    }
    EXPECT_NE(entry->second, print(effect.with + std::vector<std::string>{effect.change}))
        << key << " changes nothing: " << effect.change << "\n"
        << entry->second;
  }
}

TEST(EveryLayoutKey, HasAnEffectOnFourRanks) {
  expect_effects(kLayoutEffects, layout_print);
}

TEST(EveryLayoutKey, OfExchangesChangesTheirOrder) {
  expect_effects(kExchangeEffects, exchange_print);
}

/// The median time between the start of an exchange of context ranks and the wait for it.
double median_time_ahead(const std::vector<std::string>& settings) {
  const test::Scratch scratch;
  run_on_four_ranks(settings, scratch);
  std::vector<double> ahead;
  const Json content = read_json(scratch / "log/trace.json");
  for (const Json& event : content.at("traceEvents"))
    if (event.value("cat", "") == "communication" &&
        event.at("name").get<std::string>().starts_with("cp "))
      ahead.push_back(event.at("dur").get<double>() -
                      event.at("args").at("waited_us").get<double>());
  EXPECT_GT(ahead.size(), 20u);
  std::ranges::sort(ahead);
  return ahead.at(ahead.size() / 2);
}

/// Three of four exchanges of a ring lie beside the attention of a part: two orders of magnitude
/// longer than what lies between a start and a wait behind each other.
TEST(EveryLayoutKey, OfTheRingDecidesWhenExchangesBegin) {
  const std::vector<std::string> ring = {"parallel.context_parallel_size=2"};
  const double early = median_time_ahead(ring);
  EXPECT_LT(median_time_ahead(ring + std::vector<std::string>{"comm_overlap.cp=false"}), early / 2);
}

TEST_F(EveryKey, IsInTheTableOnce) {
  std::set<std::string> known;
  for (const config::FieldInfo& field : config::list_fields<Config>()) {
    known.insert(field.path);
    EXPECT_EQ(kEffects.count(field.path) + kSpeedOnly.count(field.path) +
                  kElsewhere.count(field.path) + kLayoutEffects.count(field.path) +
                  kExchangeEffects.count(field.path),
              1u)
        << field.path << ": say in this file what it changes";
  }
  for (const auto& [key, effect] : kEffects) EXPECT_TRUE(known.contains(key)) << key;
  for (const auto& [key, effect] : kSpeedOnly) EXPECT_TRUE(known.contains(key)) << key;
  for (const auto& [key, reason] : kElsewhere) EXPECT_TRUE(known.contains(key)) << key;
  for (const auto& [key, effect] : kLayoutEffects) EXPECT_TRUE(known.contains(key)) << key;
  for (const auto& [key, effect] : kExchangeEffects) EXPECT_TRUE(known.contains(key)) << key;
}

TEST(EveryKeyAtItsLimits, IsAConfigurationOrAnError) {
  for (const config::FieldInfo& field : config::list_fields<Config>())
    for (const char* value : {"0", "-1", "9223372036854775807", "nan", "[]", "\"\""})
      for (const int ranks : {1, 8}) {
        SCOPED_TRACE(fmt::format("{}={}", field.path, value));
        try {
          load_config(std::nullopt, {fmt::format("{}={}", field.path, value)}, {}, ranks);
        } catch (const Error& error) {
          EXPECT_STRNE(error.what(), "");
        }
      }
}

TEST(EveryKeyAtItsLimits, ThatIsANumberIsFinite) {
  int numbers = 0;
  for (const config::FieldInfo& field : config::list_fields<Config>()) {
    if (field.type.find("number") == std::string::npos) continue;
    ++numbers;
    for (const char* value : {"inf", "-inf", ".inf", "nan"}) {
      const bool list = field.type.starts_with("list");
      EXPECT_NE(test::error_of([&] {
                  load_config(std::nullopt, {fmt::format("{}={}{}{}", field.path, list ? "[" : "",
                                                         value, list ? "]" : "")});
                }),
                "")
          << field.path << "=" << value;
    }
  }
  EXPECT_GT(numbers, 10);
  EXPECT_THAT(test::error_of([] { load_config(std::nullopt, {"optimizer.lr=inf"}); }),
              testing::HasSubstr("optimizer.lr=.inf is not allowed: it must be a finite number"));
  EXPECT_THAT(test::error_of([] {
                load_config(std::nullopt, {"train.global_batch_size=1000000000000000000"});
              }),
              testing::HasSubstr("train.global_batch_size=1000000000000000000 is not allowed"));
}

TEST(EveryKeyAtItsLimits, OfSizesIsTold) {
  const std::string told = test::error_of([] {
    load_config(std::nullopt, {"model.hidden_size=9223372036854775807", "model.num_layers=1048577"},
                {}, 1);
  });
  EXPECT_THAT(
      told,
      testing::HasSubstr(
          "model.hidden_size=9223372036854775807 is not allowed: it must be >= 1, <= 1073741824"));
  EXPECT_THAT(told, testing::HasSubstr(fmt::format("try: model.num_layers={}\n",
                                                   models::ModelConfig{}.num_layers)))
      << "the limit would be refused for its memory";
  EXPECT_THAT(test::error_of([] {
                load_config(std::nullopt,
                            {"model.hidden_size=1073741824", "model.num_attention_heads=1024",
                             "model.num_layers=1048576", "train.micro_batch_size=1073741824",
                             "train.seq_length=1073741824"},
                            {}, 8);
              }),
              testing::HasSubstr("give a model with"));
}

TEST_F(EveryKey, HasAnEffect) {
  // Only these may end in an error, or turn one into a run.
  const std::set<std::string> may_fail = {"train.on_nan", "train.max_skipped_iterations",
                                          "dataset.on_bad_input", "dataset.max_line_bytes"};
  std::map<std::vector<std::string>, std::string> without;
  for (const auto& [key, effect] : kEffects) {
    auto [entry, fresh] = without.try_emplace(effect.with);
    if (fresh) {
      entry->second = fingerprint(effect.with);
      EXPECT_EQ(entry->second, fingerprint(effect.with)) << "a run repeats itself";
    }
    if (!may_fail.contains(key)) {
      EXPECT_EQ(entry->second.find("error: "), std::string::npos) << key << "\n" << entry->second;
    }
    const std::string with = fingerprint(effect.with + std::vector<std::string>{effect.change});
    EXPECT_NE(entry->second, with) << key << " changes nothing: " << effect.change;
    if (!may_fail.contains(key)) {
      EXPECT_EQ(with.find("error: "), std::string::npos) << key << "\n" << with;
    }
  }
}

TEST_F(EveryKey, OfSpeedAloneChangesNothing) {
  const std::string plain = fingerprint({});
  for (const auto& [key, effect] : kSpeedOnly)
    EXPECT_EQ(plain, fingerprint({effect.change})) << key;
}

TEST(Runtime, SetsThreads) {
  const int before = at::get_num_threads();
  set_compute_threads(1);
  EXPECT_EQ(at::get_num_threads(), 1);
  set_compute_threads(2);
  EXPECT_EQ(at::get_num_threads(), 2);
  set_compute_threads(before);
}

TEST(Runtime, RefusesFarMoreThreadsThanCores) {
  const int64_t cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  EXPECT_NO_THROW(check_threads(std::max<int64_t>(16, 4 * cores)));
  const int64_t many = std::max<int64_t>(16, 4 * cores) + 1;
  const std::string error = test::error_of([&] { set_compute_threads(many); });
  EXPECT_NE(error.find(fmt::format("train.num_threads={} is more than 4 threads", many)),
            std::string::npos)
      << error;
  EXPECT_NE(error.find(fmt::format("try: train.num_threads={}", cores)), std::string::npos)
      << error;
}

TEST(Runtime, ThreadsOfTheEnvironmentCount) {
  const int before = at::get_num_threads();
  const char* const old = std::getenv("OMP_NUM_THREADS");
  const std::optional<std::string> kept = old == nullptr ? std::nullopt : std::optional(old);
  const auto threads = [](const char* value, int64_t configured) {
    setenv("OMP_NUM_THREADS", value, 1);
    set_compute_threads(configured);
    return at::get_num_threads();
  };
  EXPECT_EQ(threads("3", 0), 3);
  EXPECT_EQ(threads("5,2", 0), 5) << "the first of nested levels";
  EXPECT_EQ(threads("3", 2), 2) << "train.num_threads comes first";
  for (const char* no_number : {"", "0", "-1", "many", "3x", "99999999999999999999"})
    EXPECT_EQ(threads(no_number, 0), threads("", 0)) << no_number;
  kept ? setenv("OMP_NUM_THREADS", kept->c_str(), 1) : unsetenv("OMP_NUM_THREADS");
  set_compute_threads(before);
}

TEST(Runtime, TellsThreadsThatSuitNoMachine) {
  const OwnProcessors quarter{.all = 8, .share = 2}, one{.all = 8, .share = 1};
  EXPECT_EQ(thread_warning(2, quarter, true), "");
  EXPECT_EQ(thread_warning(8, quarter, false),
            "train.num_threads=8 is more than the 2 processors for each rank of this machine\n"
            "  try: train.num_threads=2");
  EXPECT_EQ(thread_warning(9, quarter, false),
            "train.num_threads=9 is more than the 8 processors that this process may use\n  try: "
            "train.num_threads=2");
  const char* const old = std::getenv("OMP_NUM_THREADS");
  const std::optional<std::string> kept = old == nullptr ? std::nullopt : std::optional(old);
  setenv("OMP_NUM_THREADS", "1", 1);
  EXPECT_EQ(thread_warning(0, quarter, false), "") << "the user's wish";
  EXPECT_EQ(thread_warning(0, one, true), "") << "all are busy";
  EXPECT_THAT(thread_warning(0, quarter, true), testing::EndsWith("try: OMP_NUM_THREADS=2"));
  setenv("OMP_NUM_THREADS", "2", 1);
  EXPECT_EQ(thread_warning(0, quarter, true), "");
  EXPECT_EQ(thread_warning(0, one, false),
            "OMP_NUM_THREADS=2 is more than the 1 processor for each rank of this machine\n"
            "  try: OMP_NUM_THREADS=1");
  setenv("OMP_NUM_THREADS", "many", 1);
  EXPECT_EQ(thread_warning(0, quarter, false),
            "OMP_NUM_THREADS=many is no number of threads, so each rank takes 2\n"
            "  try: OMP_NUM_THREADS=2");
  EXPECT_EQ(thread_warning(1, quarter, false), "");
  setenv("OMP_NUM_THREADS", "100000", 1);
  EXPECT_THAT(test::error_of([] { check_threads(0); }),
              testing::HasSubstr("OMP_NUM_THREADS=100000 is more than 4 threads for each"));
  kept ? setenv("OMP_NUM_THREADS", kept->c_str(), 1) : unsetenv("OMP_NUM_THREADS");
}

TEST(Runtime, ThePeakNamesItsWinner) {
  const Peak peak = measure_gemm_peak(Precision::kFp64); // which LibTorch alone computes fast
  EXPECT_GT(peak.flops, 0);
  EXPECT_THAT(peak.source, testing::ContainsRegex("best of 3 fp64 matrix products here "
                                                  "\\([0-9]+x[0-9]+x[0-9]+, LibTorch, [0-9]+ "
                                                  "threads?\\)"));
}

TEST(Runtime, ChoosesDevices) {
  EXPECT_TRUE(choose_device(DeviceKind::kCpu).is_cpu());
  if (at::hasCUDA()) GTEST_SKIP() << "this build has CUDA";
  EXPECT_TRUE(choose_device(DeviceKind::kAuto).is_cpu());
  try {
    choose_device(DeviceKind::kCuda);
    ADD_FAILURE() << "device=cuda without CUDA";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("device=cuda"));
  }
}

} // namespace
} // namespace pentatron::trainer
