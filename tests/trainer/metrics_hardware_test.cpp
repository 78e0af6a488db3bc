#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/trainer/contention_notice.h"
#include "pentatron/trainer/metrics/cpu_share.h"
#include "pentatron/trainer/metrics/hardware.h"
#include "pentatron/trainer/metrics/peak.h"
#include "pentatron/trainer/stop.h"
#include "tests/support/files.h"
#include "tests/support/log_capture.h"
#include "tests/support/ranks.h"

namespace pentatron::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

/// A /proc with one thread of this process.
void write_proc(const fs::path& root, double running_s, double waiting_s, int stolen_ticks) {
  fs::create_directories(root / "proc/self/task/7");
  std::ofstream(root / "proc/self/task/7/schedstat")
      << fmt::format("{:.0f} {:.0f} 12\n", running_s * 1e9, waiting_s * 1e9);
  std::ofstream(root / "proc/stat") << fmt::format("cpu  1000 0 0 {} 0 0 0 {} 0 0\ncpu0 1 2 3\n",
                                                   1000 - stolen_ticks, stolen_ticks);
}

TEST(CpuTimes, AreThoseOfThreadsAndProcessors) {
  const TemporaryFolder root;
  write_proc(root.path(), 3, 1.5, 200);
  const CpuTime time = read_cpu_time(root.path());
  EXPECT_DOUBLE_EQ(time.running, 3);
  EXPECT_DOUBLE_EQ(time.waiting, 1.5);
  EXPECT_DOUBLE_EQ(time.stolen / time.total, 0.1);
  const CpuTime none = read_cpu_time(root.path() / "nowhere");
  EXPECT_EQ(none.running + none.waiting + none.stolen + none.total, 0);
}

TEST(CpuTimes, OfThisProcessGrow) {
  const CpuTime before = read_cpu_time();
  volatile double x = 0;
  for (int i = 0; i < 30'000'000; ++i) x = x + 1;
  EXPECT_GT(read_cpu_time().running, before.running);
}

TEST(Contention, IsToldFromATenthOfTheTime) {
  const auto find = [](double running, double waiting, double stolen, int threads = 2) {
    return find_contention(
        {.running = 1, .waiting = 1, .stolen = 5, .total = 10},
        {.running = 1 + running, .waiting = 1 + waiting, .stolen = 5 + stolen, .total = 20},
        threads);
  };
  EXPECT_FALSE(find(10, 0.5, 0.5));
  EXPECT_FALSE(find(0.2, 0.2, 0)) << "too little to tell";
  ASSERT_TRUE(find(6, 4, 0));
  EXPECT_THAT(find(6, 4, 0)->what, HasSubstr("had to wait for a processor 40 % of the time"));
  EXPECT_THAT(find(6, 4, 0)->remedy, HasSubstr("OMP_NUM_THREADS"));
  EXPECT_EQ(find(6, 4, 0, 1)->remedy, "stop other programs") << "one thread cannot be fewer";
  ASSERT_TRUE(find(10, 0, 2));
  EXPECT_THAT(find(10, 0, 2)->what, HasSubstr("gave 20 % of the processor time"));
}

TEST(ContentionWatch, LooksAtTheFirstStepsButOneAndThenAtEveryMinute) {
  const TemporaryFolder root;
  ContentionWatch watch(root.path());
  double running = 1, waiting = 9, now = 0;
  write_proc(root.path(), running, waiting, 0);
  EXPECT_FALSE(watch.step(now));
  // The steps, each a second long, after which it finds something that it did not find before, or
  // nothing any more.
  const auto changes = [&](int steps, double waiting_a_step) {
    std::vector<int> at;
    for (int step = 1; step <= steps; ++step) {
      const bool before = watch.finding().has_value();
      write_proc(root.path(), running += 1, waiting += waiting_a_step, 0);
      const std::optional<Finding>& finding = watch.step(now += 1);
      if (finding.has_value() != before) at.push_back(step);
      if (finding) {
        EXPECT_THAT(finding->what, HasSubstr("of the time"));
      }
    }
    return at;
  };
  EXPECT_THAT(changes(200, 1), ElementsAre(4))
      << "crowded from the start, looks at 4, 64, 124, 184";
  EXPECT_THAT(changes(200, 0), ElementsAre(104)) << "the look at 244 still sees the end of it";
  EXPECT_THAT(changes(200, 1), ElementsAre(24)) << "crowded again";
}

TEST(ContentionNotice, NamesOneRankWhenContentionOfAnyBegins) {
  const TemporaryFolder root;
  const std::string log = test::log_of([&] {
    test::run_ranks(3, [&](const comm::Group& world) {
      log::set_thread_output(nullptr, world.rank() == 0); // as the program does
      const fs::path own = root.path() / std::to_string(world.rank());
      ContentionNotice notice(world, own);
      double running = 1, waiting = 1, now = 0;
      // Steps of a second, in which these ranks wait as long as they run.
      const auto run = [&](int steps, const std::set<int>& crowded) {
        for (int step = 0; step < steps; ++step) {
          write_proc(own, running += 1, waiting += crowded.contains(world.rank()) ? 1 : 0, 0);
          notice.tell(any_rank({.contended = notice.look(now += 1)}, world).contended);
        }
      };
      run(150, {1, 2});
      run(150, {2}); // goes on
      run(150, {});
      run(150, {0});
      log::set_thread_output(nullptr, true);
    });
  });
  const auto count = [&](const std::string& text) {
    int times = 0;
    for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++times;
    return times;
  };
  EXPECT_EQ(count("had to wait for a processor"), 2) << log;
  EXPECT_EQ(count("rank 1 on "), 1) << log;
  EXPECT_EQ(count("rank 0 on "), 1) << log;
  EXPECT_LT(log.find("rank 1 on "), log.find("rank 0 on ")) << log;
}

TEST(ContentionNotice, OfASingleRankHasNoRank) {
  const TemporaryFolder root;
  const std::string log = test::log_of([&] {
    ContentionNotice notice({}, root.path());
    for (int step = 0; step < 100; ++step) {
      write_proc(root.path(), 1 + step, 1 + step, 0);
      notice.tell(notice.look(step));
    }
  });
  EXPECT_THAT(log, HasSubstr("warning: compute threads had to wait for a processor 50 %"));
  EXPECT_THAT(log, HasSubstr("try: stop other programs"));
}

TEST(GpuPeak, KnowsTheNamesThatDriversReport) {
  const auto tflops = [](const char* name, Arithmetic a) {
    const auto peak = gpu_peak(name, a);
    return peak ? peak->flops / 1e12 : 0.0;
  };
  EXPECT_EQ(tflops("NVIDIA A100-SXM4-80GB", Arithmetic::kBf16), 312);
  EXPECT_EQ(tflops("NVIDIA A100-SXM4-80GB", Arithmetic::kFp8), 0);
  EXPECT_EQ(tflops("NVIDIA H100 80GB HBM3", Arithmetic::kBf16), 989.4);
  EXPECT_EQ(tflops("NVIDIA H100 80GB HBM3", Arithmetic::kFp8), 1978.9);
  EXPECT_EQ(tflops("NVIDIA H100 PCIe", Arithmetic::kBf16), 756);
  EXPECT_EQ(tflops("NVIDIA H200", Arithmetic::kFp32), 66.9);
  EXPECT_EQ(tflops("NVIDIA H200 NVL", Arithmetic::kBf16), 835.5);
  EXPECT_EQ(tflops("NVIDIA B200", Arithmetic::kBf16), 2250);
  EXPECT_EQ(tflops("NVIDIA GB200", Arithmetic::kBf16), 2500);
  EXPECT_EQ(tflops("NVIDIA L4", Arithmetic::kBf16), 121);
  EXPECT_EQ(tflops("NVIDIA L40S", Arithmetic::kBf16), 362);
  EXPECT_EQ(tflops("NVIDIA L40", Arithmetic::kBf16), 181);
  EXPECT_EQ(tflops("NVIDIA GeForce RTX 4090", Arithmetic::kBf16), 165.2);
  EXPECT_EQ(tflops("Tesla T4", Arithmetic::kFp32), 8.1);
  EXPECT_EQ(tflops("Some other GPU", Arithmetic::kFp32), 0);
  EXPECT_THAT(gpu_peak("NVIDIA H200", Arithmetic::kBf16)->source,
              HasSubstr("NVIDIA H200 bf16 (data sheet"));
}

TEST(Utilization, IsTheRateOverThePeakOfAllDevices) {
  EXPECT_EQ(*utilization(2e12, 0.5, Peak{8e12, "x"}, 2), 0.25);
  EXPECT_FALSE(utilization(2e12, 0.5, std::nullopt, 1).has_value());
}

TEST(MeasureBandwidth, GivesAPossibleRate) {
  for (const int threads : {1, 2, 3}) {
    const double rate = measure_bandwidth(threads, size_t{1} << 20);
    EXPECT_GT(rate, 1e7);
    EXPECT_LT(rate, 1e14);
  }
}

class FakeMachine : public ::testing::Test {
 protected:
  FakeMachine() {
    std::string cpus;
    for (int i = 0; i < 8; ++i) {
      cpus += "processor\t: " + std::to_string(i) +
              "\nmodel name\t: A Processor 3000\nphysical id\t: " + std::to_string(i / 4) +
              "\ncore id\t\t: " + std::to_string(i % 2) +
              "\nflags\t\t: fpu avx avx2 fma sse avx512f\n\n";
    }
    write("proc/cpuinfo", cpus);
    write("proc/meminfo", "MemTotal:       16384000 kB\nMemFree: 5 kB\nMemAvailable:    8192000 "
                          "kB\nSwapTotal: 2048000 kB\nSwapFree: 1024000 kB\n");
    write("proc/loadavg", "7.50 1.00 1.00 1/100 1\n");
    for (int i = 0; i < 2; ++i) {
      const std::string cache = "sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
      write(cache + "level", i == 0 ? "1\n" : "2\n");
      write(cache + "type", i == 0 ? "Data\n" : "Unified\n");
      write(cache + "size", i == 0 ? "32K\n" : "2M\n");
      write(cache + "shared_cpu_map", "00000011\n");
    }
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    write("sys/fs/cgroup/cpu.max", "150000 100000\n");
    write("sys/fs/cgroup/memory.max", "4294967296\n");
    fs::create_directories(root / "sys/devices/system/node/node0");
    fs::create_directories(root / "sys/devices/system/node/node1");
  }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text;
  }
  const TemporaryFolder temporary;
  const fs::path root = temporary.path();
};

TEST_F(FakeMachine, FreeMemoryIsInsideTheLimitOfTheControlGroup) {
  constexpr int64_t kGb = int64_t{1} << 30;
  Machine machine = read_machine(root);
  EXPECT_EQ(machine.memory_limit_bytes, 4 * kGb);
  write("sys/fs/cgroup/memory.current", "3221225472\n"); // 3 GiB, 1 GiB of them of files
  write("sys/fs/cgroup/memory.stat",
        "anon 2147483648\ninactive_file 1000000000\nactive_file 73741824\n");
  machine = read_machine(root);
  EXPECT_EQ(machine.memory_used_bytes, 2 * kGb);
  machine.available_bytes = 16 * kGb;
  machine.swap_bytes = machine.swap_used_bytes = 0;
  EXPECT_EQ(free_memory_bytes(machine), 2 * kGb);
  machine.available_bytes = kGb;
  machine.swap_bytes = kGb / 2;
  EXPECT_EQ(free_memory_bytes(machine), kGb + kGb / 2);
  machine.memory_limit_bytes.reset();
  machine.available_bytes = 0;
  EXPECT_EQ(free_memory_bytes(machine), std::nullopt);
}

TEST_F(FakeMachine, IsReadFromProcAndSys) {
  const Machine machine = read_machine(root);
  EXPECT_EQ(machine.cpu_name, "A Processor 3000");
  EXPECT_EQ(machine.processors, 8);
  EXPECT_EQ(machine.sockets, 2);
  EXPECT_EQ(machine.cores, 4);
  EXPECT_THAT(machine.features, ElementsAre("avx", "avx2", "fma", "avx512f"));
  EXPECT_TRUE(machine.has("avx512f"));
  EXPECT_FALSE(machine.has("avx512_bf16"));
  EXPECT_EQ(machine.memory_bytes, int64_t{16384000} * 1024);
  EXPECT_EQ(machine.swap_used_bytes, int64_t{1024000} * 1024);
  ASSERT_EQ(machine.caches.size(), 2u);
  EXPECT_EQ(machine.caches[0].bytes, 32 << 10);
  EXPECT_EQ(machine.caches[1].bytes, 2 << 20);
  EXPECT_EQ(machine.caches[1].shared_by, 2);
  EXPECT_EQ(machine.governor, "powersave");
  EXPECT_EQ(machine.huge_pages, "never");
  EXPECT_EQ(machine.cpu_quota, 1.5);
  EXPECT_EQ(machine.memory_limit_bytes, int64_t{1} << 32);
  EXPECT_EQ(machine.numa_nodes, 2);
  EXPECT_EQ(machine.load, 7.5);
  EXPECT_THAT(describe(machine), HasSubstr("A Processor 3000"));
}

TEST_F(FakeMachine, EachShortcomingIsFoundOnce) {
  Machine machine = read_machine(root);
  machine.usable = 8;
  const auto texts = [&](const Setting& setting) {
    std::string all;
    for (const Finding& f : find_slowdowns(machine, setting))
      all += f.what + " -> " + f.remedy + "\n";
    return all;
  };
  const std::string all =
      texts({.threads = 16, .release_build = false, .cuda_build = false, .has_gpu = false});
  for (const char* part : {"without optimization", "16 compute threads share 2 processors",
                           "allows 1.5 of 8 processors", "use 7.5 of 8", "governor is powersave",
                           "swap is in use", "huge pages are turned off", "has 2 NUMA nodes",
                           "allows 4.29 GB of 16.78 GB", "bf16 no faster"}) {
    const size_t at = all.find(part);
    EXPECT_NE(at, std::string::npos) << part << "\n" << all;
    EXPECT_EQ(all.find(part, at + 1), std::string::npos) << part;
  }
  EXPECT_THAT(texts({.has_gpu = true}), HasSubstr("without CUDA"));
}

TEST(FindSlowdowns, AGoodMachineHasNone) {
  Machine machine;
  machine.processors = machine.cores = machine.usable = 32;
  machine.features = {"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"};
  machine.memory_bytes = machine.available_bytes = int64_t{256} << 30;
  machine.governor = "performance";
  machine.huge_pages = "madvise";
  machine.numa_nodes = 1;
  const auto found = find_slowdowns(machine, {.threads = 32, .folder = "/proc/none"});
  for (const Finding& f : found) ADD_FAILURE() << f.what;
}

TEST(ReadMachine, KnowsThisOne) {
  const Machine machine = read_machine();
  EXPECT_GT(machine.processors, 0);
  EXPECT_GT(machine.usable, 0);
  EXPECT_LE(machine.usable, machine.processors);
  EXPECT_GT(machine.memory_bytes, int64_t{100} << 20);
  EXPECT_FALSE(describe(machine).empty());
}

} // namespace
} // namespace pentatron::trainer
