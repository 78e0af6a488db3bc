#include "pentatron/trainer/metrics/mlflow.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/sha256.h"
#include "pentatron/base/text.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

constexpr int kRunning = 1;
constexpr size_t kMaxParam = 6000; // MLflow refuses longer ones

int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// A YAML scalar: JSON's strings are YAML's.
std::string quoted(const std::string& text) {
  return dump_json(Json(text));
}

/// The value of a line "key: value" of a file that MLflow or we have written; "" if there is none.
std::string meta_value(std::string_view text, std::string_view key) {
  for (const std::string_view line : split(text, '\n')) {
    if (!line.starts_with(key) || line.substr(key.size(), 2) != ": ") continue;
    const std::string_view value = trim(line.substr(key.size() + 2));
    if (value.starts_with('"')) {
      const Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
      return json.is_string() ? json.get<std::string>() : "";
    }
    if (value.size() >= 2 && value.starts_with('\'') && value.ends_with('\'')) {
      std::string plain;
      for (size_t i = 1; i + 1 < value.size(); ++i) {
        plain += value[i];
        if (value[i] == '\'') ++i; // doubled
      }
      return plain;
    }
    return std::string(value);
  }
  return "";
}

std::string meta_text(const fs::path& folder) {
  try {
    const MappedFile file(folder / "meta.yaml");
    return std::string(file.text().substr(0, 65536));
  } catch (const DataError&) {
    return "";
  }
}

void put(const fs::path& file, std::string_view text) {
  try {
    write_file_atomically(file, text);
  } catch (const Error& error) {
    throw DataError(error.what());
  }
}

void make_store(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) raise<DataError>("{} cannot be created: {}", folder.string(), error.message());
}

/// The id of the experiment, which is the name of its folder.
std::string open_experiment(const fs::path& store, const std::string& name) {
  std::error_code error;
  for (fs::directory_iterator it(store, error), end; !error && it != end; it.increment(error)) {
    const std::string text = meta_text(it->path());
    if (!text.empty() && meta_value(text, "name") == name) return it->path().filename().string();
  }
  // 18 digits, as MLflow has them, and the same for two runs that begin at once.
  uint64_t number = 0;
  const std::string digest = sha256(name).substr(0, 15);
  std::from_chars(digest.data(), digest.data() + digest.size(), number, 16);
  const std::string id =
      fmt::format("{:018}", 100'000'000'000'000'000 + number % 800'000'000'000'000'000);
  make_store(store / id);
  const int64_t now = unix_ms();
  put(store / id / "meta.yaml",
      fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\n"
                  "last_update_time: {}\nlifecycle_stage: active\nname: {}\n",
                  quoted("file://" + (store / id).string()), now, id, now, quoted(name)));
  return id;
}

/// MLflow's names of metrics and parameters are names of files.
std::string file_name(const std::string& name) {
  std::string out = name;
  for (char& c : out)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-' && c != '.')
      c = '_';
  return out;
}

/// Many small files, which need not be durable.
void write_param(const fs::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  if (!out) raise<DataError>("{} cannot be written: {}", file.string(), std::strerror(errno));
}

/// Removes the lines of steps after `iteration`, and a last line that was cut off. A file that
/// loses whole lines is first copied to `earlier`.
void cut_metric(const fs::path& file, int64_t iteration, const fs::path& earlier) {
  std::ifstream in(file);
  std::string all, kept;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    int64_t step = 0;
    const size_t at = line.rfind(' ') + 1;
    const auto [end, error] = std::from_chars(line.data() + at, line.data() + line.size(), step);
    if (error == std::errc() && end == line.data() + line.size() && step <= iteration)
      kept += line + "\n";
    all += line + "\n";
  }
  if (in.bad()) raise<DataError>("{} cannot be read: {}", file.string(), std::strerror(errno));
  in.close();
  if (all.size() > kept.size()) {
    make_store(earlier);
    put(earlier / file.filename(), all);
  }
  put(file, kept);
}

/// "earlier-N" in the folder, for the first N that is free.
fs::path free_folder(const fs::path& folder) {
  for (int n = 1;; ++n) {
    std::error_code error;
    fs::path path = folder / fmt::format("earlier-{}", n);
    if (!fs::exists(path, error)) return path;
  }
}

} // namespace

MlflowWriter::MlflowWriter(const fs::path& store, const TrackedRun& run)
    : id_(sha256(run.id).substr(0, 32)), name_(run.name), begin_ms_(unix_ms()) {
  std::error_code error;
  const fs::path root = fs::absolute(store, error);
  make_store(root);
  experiment_ = open_experiment(root, run.group);
  path_ = root / experiment_ / id_;
  for (const char* folder : {"metrics", "params", "tags", "artifacts"}) make_store(path_ / folder);
  if (run.resumed_iteration > 0) {
    const std::string text = meta_text(path_);
    const std::string begin = meta_value(text, "start_time");
    std::from_chars(begin.data(), begin.data() + begin.size(), begin_ms_);
    const fs::path earlier = free_folder(path_ / "artifacts");
    for (const auto& entry : fs::directory_iterator(path_ / "metrics"))
      cut_metric(entry.path(), run.resumed_iteration, earlier);
  }
  for (const auto& [key, value] : run.config) {
    const std::string text = value.is_string() ? value.get<std::string>() : dump_json(value);
    write_param(path_ / "params" / file_name(key), text.substr(0, kMaxParam));
  }
  put(path_ / "tags/mlflow.runName", name_);
  put(path_ / "tags/mlflow.source.name", "pentatron");
  put(path_ / "tags/mlflow.source.type", "LOCAL");
  write_meta(kRunning, 0);
}

void MlflowWriter::write_meta(int status, int64_t end_ms) const {
  put(path_ / "meta.yaml",
      fmt::format("artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '{}'\n"
                  "lifecycle_stage: active\nrun_id: '{}'\nrun_name: {}\nsource_name: pentatron\n"
                  "source_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {}\ntags: []\n"
                  "user_id: ''\n",
                  quoted("file://" + (path_ / "artifacts").string()),
                  end_ms > 0 ? fmt::to_string(end_ms) : "null", experiment_, id_, quoted(name_),
                  begin_ms_, status));
}

std::FILE* MlflowWriter::metric(const std::string& name) {
  auto& file = metrics_[name];
  if (!file) {
    const fs::path path = path_ / "metrics" / file_name(name);
    file.reset(std::fopen(path.c_str(), "ae"));
    if (!file) raise<DataError>("{} cannot be written: {}", path.string(), std::strerror(errno));
  }
  return file.get();
}

void MlflowWriter::log(int64_t step, const TrackedValues& values) {
  const int64_t now = unix_ms();
  for (const auto& [name, value] : values) {
    const std::string line =
        fmt::format("{} {} {}\n", now,
                    std::isfinite(value) ? exact_text(value) : fmt::format("{}", value), step);
    std::FILE* const file = metric(name);
    if (std::fwrite(line.data(), 1, line.size(), file) != line.size() || std::fflush(file) != 0)
      raise<DataError>("{} cannot be written: {}", (path_ / "metrics" / file_name(name)).string(),
                       std::strerror(errno));
  }
}

void MlflowWriter::finish(End end) {
  write_meta(static_cast<int>(end), unix_ms());
}

} // namespace pentatron::trainer
