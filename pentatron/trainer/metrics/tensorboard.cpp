#include "pentatron/trainer/metrics/tensorboard.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <unistd.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/host_name.h"
#include "pentatron/trainer/metrics/protobuf.h"

namespace pentatron::trainer {

using namespace protobuf;

namespace {

uint32_t masked_crc(std::string_view data) {
  return mask_crc32c(crc32c(std::as_bytes(std::span(data.data(), data.size()))));
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

} // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder,
                                     std::optional<int64_t> resumed_iteration) {
  static std::atomic<int> count{0};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  // TensorBoard reads the files of a folder in the order of their names.
  path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<int64_t>(now_s()),
                               host_name(), ::getpid(), count.fetch_add(1));
  file_ = std::fopen(path_.c_str(), "wbxe");
  if (file_ == nullptr)
    raise<DataError>("{} cannot be written: {}", path_.string(), std::strerror(errno));
  try {
    event(bytes_field(3, "brain.Event:2"), 0);
    if (resumed_iteration) {
      std::string start;
      append_int(start, 1, 1); // SessionLog.status = START: purge steps from this one on
      event(bytes_field(7, start), *resumed_iteration + 1);
    }
    flush();
  } catch (const DataError&) {
    std::fclose(file_);
    std::filesystem::remove(path_, error);
    throw;
  }
}

TensorBoardWriter::~TensorBoardWriter() {
  std::fclose(file_);
}

void TensorBoardWriter::flush() {
  if (std::fflush(file_) != 0)
    raise<DataError>("{} cannot be written: {}", path_.string(), std::strerror(errno));
}

void TensorBoardWriter::record(std::string_view data) {
  std::string length;
  append_raw(length, static_cast<uint64_t>(data.size()));
  std::string out = length;
  append_raw(out, masked_crc(length));
  out += data;
  append_raw(out, masked_crc(data));
  if (std::fwrite(out.data(), 1, out.size(), file_) != out.size()) {
    raise<DataError>("{} cannot be written: {}", path_.string(), std::strerror(errno));
  }
}

void TensorBoardWriter::event(std::string_view field, int64_t step) {
  std::string event;
  append_double(event, 1, now_s());
  append_int(event, 2, step);
  event += field;
  record(event);
}

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, double value) {
  std::string item = bytes_field(1, tag);
  append_float(item, 2, static_cast<float>(value));
  event(bytes_field(5, bytes_field(1, item)), step);
}

/// HistogramProto: 1 min, 2 max, 3 num, 4 sum, 5 sum_squares, 6 bucket_limit, 7 bucket.
void TensorBoardWriter::histogram(std::string_view tag, int64_t step, const LayerLoad& load) {
  const auto experts = static_cast<double>(load.choices.size());
  double total = 0, squares = 0, least = INFINITY;
  for (const int64_t n : load.choices) total += static_cast<double>(n);
  for (const int64_t n : load.choices) {
    const double times = total > 0 ? static_cast<double>(n) * experts / total : 0;
    least = std::min(least, times);
    squares += times * times;
  }
  std::string limits, counts;
  for (size_t bin = 0; bin < LayerLoad::kBins.size(); ++bin) {
    const bool last = bin + 1 == LayerLoad::kBins.size();
    append_raw(limits, last ? std::max(load.largest, LayerLoad::kBins.back() + 1)
                            : LayerLoad::kBins[bin + 1]);
    append_raw(counts, static_cast<double>(load.histogram[bin]));
  }
  std::string histo;
  append_double(histo, 1, least);
  append_double(histo, 2, load.largest);
  append_double(histo, 3, experts);
  append_double(histo, 4, total > 0 ? experts : 0);
  append_double(histo, 5, squares);
  append_bytes(histo, 6, limits);
  append_bytes(histo, 7, counts);
  std::string item = bytes_field(1, tag);
  append_bytes(item, 5, histo);
  event(bytes_field(5, bytes_field(1, item)), step);
}

void TensorBoardWriter::text(std::string_view tag, int64_t step, std::string_view markdown) {
  std::string size;
  append_int(size, 1, 1); // TensorShapeProto.Dim.size
  std::string tensor;
  append_int(tensor, 1, 7); // DT_STRING
  append_bytes(tensor, 2, bytes_field(2, size));
  append_bytes(tensor, 8, markdown);
  std::string item = bytes_field(1, tag);
  append_bytes(item, 8, tensor);
  append_bytes(item, 9, bytes_field(1, bytes_field(1, "text"))); // metadata.plugin_data.plugin_name
  event(bytes_field(5, bytes_field(1, item)), step);
}

void TensorBoardWriter::training(const TrainLog& log) {
  const auto both = [&](const std::string& tag, double value) {
    scalar(tag, log.iteration, value);
    scalar(tag + " vs samples", log.consumed_samples, value);
  };
  const auto optional = [&](const std::string& tag, const auto& value) {
    if (value) both(tag, static_cast<double>(*value));
  };
  both("learning-rate", log.learning_rate);
  both("batch-size", static_cast<double>(log.global_batch_size));
  for (const auto& [name, value] : log.losses) optional(name, value);
  optional("loss-scale", log.loss_scale);
  both("world-size", static_cast<double>(log.world_size));
  optional("grad-norm", log.grad_norm);
  optional("num-zeros", log.num_zeros);
  optional("params-norm", log.params_norm);
  optional("max_attention_logit", log.logits.most);
  optional("clipped-heads", log.logits.clipped_heads);
  both("iteration-time", log.step_time_s);
  optional("throughput", log.tflops);
  optional("tokens-per-second", log.tokens_per_s);
  optional("mfu", log.mfu);
  optional("hfu", log.hfu);
  if (log.memory_bytes) {
    scalar("mem-allocated-bytes", log.iteration, static_cast<double>(*log.memory_bytes));
  }
  for (const LayerLoad& load : log.experts) {
    scalar("experts-max-load/" + load.layer, log.iteration, load.largest);
    scalar("experts-load-entropy/" + load.layer, log.iteration, load.entropy);
    scalar("experts-unused/" + load.layer, log.iteration, static_cast<double>(load.unused));
    scalar("experts-dropped/" + load.layer, log.iteration, load.dropped);
    histogram("experts-load/" + load.layer, log.iteration, load);
  }
  if (log.skipped_samples > 0) {
    scalar("skipped-train-samples", log.iteration, static_cast<double>(log.skipped_samples));
  }
}

void TensorBoardWriter::figure(std::string_view name, std::string_view split, int64_t step,
                               double value) {
  scalar(fmt::format("{} {}", name, split), step, value);
}

void TensorBoardWriter::evaluation(std::string_view loss_name, std::string_view split, int64_t step,
                                   int64_t consumed_samples, double loss) {
  const std::string tag = fmt::format("{} {}", loss_name, split);
  scalar(tag, step, loss);
  scalar(tag + " vs samples", consumed_samples, loss);
  scalar(tag + " ppl", step, perplexity(loss));
  scalar(tag + " ppl vs samples", consumed_samples, perplexity(loss));
}

} // namespace pentatron::trainer
