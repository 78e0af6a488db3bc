/// Event files that TensorBoard reads: TFRecords of protobuf messages, encoded by hand.
/// Source: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto,
/// lib/io/record_writer.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "pentatron/trainer/metrics/train_log.h"

namespace pentatron::trainer {

/// One event file of its own in a folder; TensorBoard joins those of one folder. One thread at a
/// time.
class TensorBoardWriter {
 public:
  /// Makes the folder and the file. With `resumed_iteration` TensorBoard drops what earlier files
  /// of the folder hold for later steps. Throws DataError if that fails.
  explicit TensorBoardWriter(const std::filesystem::path& folder,
                             std::optional<int64_t> resumed_iteration = {});
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  void scalar(std::string_view tag, int64_t step, double value);
  /// Of the loads of a layer's experts, of the mean load.
  void histogram(std::string_view tag, int64_t step, const LayerLoad& load);
  /// Markdown for TensorBoard's text tab.
  void text(std::string_view tag, int64_t step, std::string_view markdown);
  /// The scalars of a step under Megatron's names, most also over consumed samples ("lm loss vs
  /// samples").
  void training(const TrainLog& log);
  /// "lm loss validation" and "lm loss validation ppl", also over samples.
  void evaluation(std::string_view loss_name, std::string_view split, int64_t step,
                  int64_t consumed_samples, double loss);
  /// "lm_accuracy validation".
  void figure(std::string_view name, std::string_view split, int64_t step, double value);
  /// Hands everything to the operating system. As all calls it throws DataError if that fails; the
  /// file then may end in the middle of a record.
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  void record(std::string_view data);
  void event(std::string_view field, int64_t step);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

} // namespace pentatron::trainer
