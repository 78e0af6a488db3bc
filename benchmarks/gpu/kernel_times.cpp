// Times of all kernels and copies of a program on a GPU, by name, for any program that uses CUDA:
//
//   g++ -O2 -std=c++20 -shared -fPIC -I/usr/local/cuda/include benchmarks/gpu/kernel_times.cpp
//       -o kernel_times.so -L/usr/local/cuda/lib64 -lcupti
//   CUDA_INJECTION64_PATH=$PWD/kernel_times.so KERNEL_TIMES=times.txt pentatron train ...
//
// CUDA loads the library and calls InitializeInjection. times.txt is written anew twice a second,
// because programs may end without destructors. It counts the last 60 % of the time since the first
// kernel, or KERNEL_TIMES_SHARE of it, so that the start of a run is left out.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cupti.h>

namespace {

struct Event {
  uint64_t begin, end; ///< ns
  int name;
};
std::mutex mutex;
std::vector<Event> events;
std::map<std::string, int> numbers;
std::vector<std::string> names;

void add(uint64_t begin, uint64_t end, const std::string& name) {
  if (begin == 0 || end < begin) return; // of a record that has no times
  const auto [place, is_new] = numbers.try_emplace(name, static_cast<int>(names.size()));
  if (is_new) names.push_back(name);
  events.push_back({begin, end, place->second});
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* records) {
  *size = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      add(kernel->start, kernel->end, kernel->name != nullptr ? kernel->name : "kernel");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      add(copy->start, copy->end, "memcpy of kind " + std::to_string(copy->copyKind));
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      add(set->start, set->end, "memset");
    }
  }
  std::free(buffer);
}

struct Sum {
  uint64_t time = 0, count = 0;
};

void write(const char* path) {
  const std::lock_guard lock(mutex);
  if (events.empty()) return;
  const auto [first, last] = std::ranges::minmax_element(events, {}, &Event::begin);
  const char* const text = std::getenv("KERNEL_TIMES_SHARE");
  const double share = text != nullptr ? std::atof(text) : 0.6;
  const uint64_t end = last->end,
                 begin =
                     end - static_cast<uint64_t>(static_cast<double>(end - first->begin) * share);
  std::vector<Sum> sums(names.size());
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  uint64_t total = 0;
  for (const Event& event : events) {
    if (event.begin < begin) continue;
    sums[static_cast<size_t>(event.name)].time += event.end - event.begin;
    ++sums[static_cast<size_t>(event.name)].count;
    total += event.end - event.begin;
    spans.emplace_back(event.begin, event.end);
  }
  std::ranges::sort(spans);
  uint64_t busy = 0, covered = 0; // kernels of several streams may overlap
  for (const auto& [from, to] : spans) {
    if (to > covered) busy += to - std::max(from, covered);
    covered = std::max(covered, to);
  }
  std::vector<size_t> order(sums.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, std::greater(), [&](size_t i) { return sums[i].time; });
  const std::string partial = std::string(path) + ".partial";
  std::FILE* const file = std::fopen(partial.c_str(), "w");
  if (file == nullptr) return;
  std::fprintf(file, "%.1f ms, of which the GPU is busy %.1f ms\n",
               static_cast<double>(end - begin) / 1e6, static_cast<double>(busy) / 1e6);
  for (const size_t i : order)
    if (sums[i].count > 0)
      std::fprintf(file, "%6.2f %%  %10.3f ms  %7llu x  %s\n",
                   100 * static_cast<double>(sums[i].time) / static_cast<double>(total),
                   static_cast<double>(sums[i].time) / 1e6,
                   static_cast<unsigned long long>(sums[i].count), names[i].c_str());
  std::fclose(file);
  std::rename(partial.c_str(), path);
}

} // namespace

extern "C" int InitializeInjection() {
  const char* const path = std::getenv("KERNEL_TIMES");
  if (path == nullptr) return 1;
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    cuptiActivityEnable(kind);
  std::thread([path] {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      cuptiActivityFlushAll(1);
      write(path);
    }
  }).detach();
  return 1;
}
