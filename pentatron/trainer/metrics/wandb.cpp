#include "pentatron/trainer/metrics/wandb.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <unistd.h>
#include <zlib.h>

#include "pentatron/base/error.h"
#include "pentatron/base/host_name.h"
#include "pentatron/trainer/metrics/protobuf.h"
#include "pentatron/trainer/run_files.h"

namespace pentatron::trainer {

namespace {

// The log of LevelDB with another checksum: blocks of 32 KiB, in them records, or parts of them,
// behind a header of checksum, length and type. A header never crosses the end of a block.
constexpr uint64_t kBlock = 32768, kHeader = 7;
enum WandbPart : uint8_t { kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

// Numbers of the members of Record.
enum WandbRecord : uint32_t {
  kHistory = 2,
  kSummary = 3,
  kRun = 17,
  kExit = 18,
  kHeaderRecord = 21
};

std::string wandb_json(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return exact_text(value);
}

/// HistoryItem, SummaryItem and ConfigItem are alike: key 1, value_json 16.
std::string wandb_item(std::string_view key, std::string_view json) {
  std::string item = protobuf::bytes_field(1, key);
  protobuf::append_bytes(item, 16, json);
  return protobuf::bytes_field(1, item);
}

/// Sections as objects: {"model": {"num_layers": 24}}.
Json nested(const std::vector<std::pair<std::string, Json>>& config) {
  Json all = Json::object();
  for (const auto& [path, value] : config) {
    Json* at = &all;
    size_t begin = 0;
    for (size_t dot; (dot = path.find('.', begin)) != std::string::npos; begin = dot + 1)
      at = &(*at)[path.substr(begin, dot - begin)];
    (*at)[path.substr(begin)] = value;
  }
  return all;
}

std::string wandb_folder_time(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  return fmt::format("{:04}{:02}{:02}_{:02}{:02}{:02}", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

} // namespace

WandbWriter::WandbWriter(const std::filesystem::path& folder, const TrackedRun& run) {
  using namespace protobuf;
  // Two starts within a second have a folder each.
  std::error_code error;
  std::filesystem::path dir;
  for (;; begin_ += std::chrono::seconds(1)) {
    dir =
        folder / kWandbFolder / fmt::format("offline-run-{}-{}", wandb_folder_time(begin_), run.id);
    std::filesystem::create_directories(dir / "files", error);
    path_ = dir / fmt::format("run-{}.wandb", run.id);
    file_ = std::fopen(path_.c_str(), "wbxe");
    if (file_ != nullptr || errno != EEXIST) break;
  }
  if (file_ == nullptr) {
    const int reason = errno;
    for (const auto& empty : {dir / "files", dir}) std::filesystem::remove(empty, error);
    raise<DataError>("{} cannot be written: {}", path_.string(), std::strerror(reason));
  }
  try {
    std::string ident = ":W&B";
    append_raw(ident, uint16_t{0xBEE1});
    ident += '\0'; // version
    raw(ident);
    std::string version = bytes_field(1, "pentatron");
    append_bytes(version, 2, "0.40.0"); // the oldest reader
    record(kHeaderRecord, bytes_field(1, version));
    std::string config;
    const Json sections = nested(run.config);
    for (const auto& [key, value] : sections.items()) config += wandb_item(key, dump_json(value));
    std::string message = bytes_field(1, run.id);
    append_bytes(message, 3, run.group);
    append_bytes(message, 4, config);
    append_bytes(message, 8, run.name);
    append_bytes(message, 13, host_name());
    if (run.resumed_iteration > 0) append_int(message, 14, run.resumed_iteration + 1);
    std::string start;
    append_int(start, 1, std::chrono::system_clock::to_time_t(begin_));
    append_bytes(message, 17, start);
    if (run.resumed_iteration > 0) append_int(message, 18, 1);
    record(kRun, message);
    flush();
  } catch (const DataError&) {
    std::fclose(file_);
    std::filesystem::remove_all(dir, error);
    throw;
  }
}

WandbWriter::~WandbWriter() {
  std::fclose(file_);
}

void WandbWriter::raw(std::string_view data) {
  if (std::fwrite(data.data(), 1, data.size(), file_) != data.size())
    raise<DataError>("{} cannot be written: {}", path_.string(), std::strerror(errno));
  size_ += data.size();
}

void WandbWriter::fragment(uint8_t type, std::string_view data) {
  const auto* const bytes = reinterpret_cast<const Bytef*>(data.data());
  std::string out;
  protobuf::append_raw(
      out, static_cast<uint32_t>(::crc32_z(::crc32_z(0, &type, 1), bytes, data.size())));
  protobuf::append_raw(out, static_cast<uint16_t>(data.size()));
  protobuf::append_raw(out, type);
  out += data;
  raw(out);
}

void WandbWriter::record(uint32_t kind, std::string_view message) {
  std::string data;
  protobuf::append_int(data, 1, ++records_);
  protobuf::append_bytes(data, kind, message);
  std::string_view rest = data;
  for (bool first = true;; first = false) {
    uint64_t room = kBlock - size_ % kBlock;
    if (room < kHeader) {
      raw(std::string(room, '\0'));
      room = kBlock;
    }
    const std::string_view part = rest.substr(0, room - kHeader);
    rest.remove_prefix(part.size());
    if (rest.empty()) {
      fragment(first ? kWhole : kLast, part);
      return;
    }
    fragment(first ? kFirst : kMiddle, part);
  }
}

void WandbWriter::log(int64_t step, const TrackedValues& values) {
  const auto now = std::chrono::system_clock::now();
  const auto seconds = [](auto time) { return std::chrono::duration<double>(time).count(); };
  std::string message;
  const auto add = [&](const std::string& key, const std::string& json) {
    message += wandb_item(key, json);
    last_[key] = json;
  };
  for (const auto& [name, value] : values) add(name, wandb_json(value));
  add("_step", fmt::to_string(step));
  add("_runtime", exact_text(seconds(now - begin_)));
  add("_timestamp", exact_text(seconds(now.time_since_epoch())));
  std::string number;
  protobuf::append_int(number, 1, step);
  protobuf::append_bytes(message, 2, number);
  record(kHistory, message);
  flush();
}

void WandbWriter::finish(int exit_code) {
  std::string message;
  for (const auto& [key, json] : last_) message += wandb_item(key, json);
  record(kSummary, message);
  message.clear();
  protobuf::append_int(message, 1, exit_code);
  protobuf::append_int(
      message, 2,
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now() - begin_)
          .count());
  record(kExit, message);
  flush();
}

void WandbWriter::flush() {
  if (std::fflush(file_) != 0)
    raise<DataError>("{} cannot be written: {}", path_.string(), std::strerror(errno));
}

} // namespace pentatron::trainer
