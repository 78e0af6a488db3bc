#include "pentatron/data/preprocess/preprocess.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/ranges.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/run_lock.h"
#include "pentatron/base/text.h"
#include "pentatron/data/indexed/indexed_writer.h"
#include "pentatron/data/preprocess/block_encoder.h"
#include "pentatron/data/preprocess/blocks.h"
#include "pentatron/data/preprocess/skip_list.h"

namespace pentatron::data {

namespace fs = std::filesystem;

namespace {

constexpr size_t kInFlightBytes = size_t{48} << 20; // of text between reader and writer
constexpr double kProgressEvery = 1.0;

/// Reader and workers, and their results in the order of the blocks.
class Pipeline {
 public:
  Pipeline(const PreprocessOptions& options, const std::vector<InputFile>& files,
           InputPosition begin) {
    reader_ = std::thread([this, &options, &files, begin] { read(options, files, begin); });
    for (int64_t i = 0; i < std::max<int64_t>(options.workers, 1); ++i)
      workers_.emplace_back([this, &options] { work(options); });
  }

  ~Pipeline() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    reader_.join();
    for (std::thread& worker : workers_) worker.join();
  }

  /// The next block; none at the end. Throws what reading or encoding it threw.
  std::optional<EncodedBlock> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return done_.contains(next_) || (read_all_ && next_ == num_blocks_); });
    const auto found = done_.find(next_);
    if (found == done_.end()) {
      if (reader_error_) std::rethrow_exception(reader_error_);
      return std::nullopt;
    }
    EncodedBlock result = std::move(found->second);
    done_.erase(found);
    ++next_;
    in_flight_ -= result.text_size;
    lock.unlock();
    changed_.notify_all();
    if (result.error) std::rethrow_exception(result.error);
    return result;
  }

 private:
  void read(const PreprocessOptions& options, const std::vector<InputFile>& files,
            InputPosition begin) {
    std::exception_ptr error;
    try {
      read_blocks(files,
                  {.max_document_bytes = options.max_document_bytes,
                   .begin = begin,
                   .keys = options.json_keys},
                  [&](Block block) {
                    std::unique_lock lock(mutex_);
                    const size_t size = block.text.size();
                    changed_.wait(lock, [&] {
                      return stop_ || in_flight_ == 0 || in_flight_ + size <= kInFlightBytes;
                    });
                    if (stop_) return false;
                    in_flight_ += size;
                    waiting_.emplace(block.number, std::move(block));
                    ++num_blocks_;
                    lock.unlock();
                    changed_.notify_all();
                    return true;
                  });
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      read_all_ = true;
      reader_error_ = error;
    }
    changed_.notify_all();
  }

  void work(const PreprocessOptions& options) {
    BlockEncoder encode(options);
    while (true) {
      Block block;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !waiting_.empty() || read_all_; });
        if (stop_ || waiting_.empty()) return;
        block = std::move(waiting_.begin()->second);
        waiting_.erase(waiting_.begin());
      }
      const int64_t number = block.number;
      EncodedBlock result;
      result.text_size = block.text.size();
      try {
        result = encode(std::move(block));
      } catch (...) {
        result.error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        done_.emplace(number, std::move(result));
      }
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Block> waiting_;
  std::map<int64_t, EncodedBlock> done_;
  size_t in_flight_ = 0;
  int64_t num_blocks_ = 0;
  int64_t next_ = 0;
  bool read_all_ = false;
  bool stop_ = false;
  std::exception_ptr reader_error_;
  std::thread reader_;
  std::vector<std::thread> workers_;
};

/// OUTPUT.partial, which one process at a time has.
class PartialFolder {
 public:
  explicit PartialFolder(const std::string& output) : path_(output + ".partial") {
    constexpr int kTries = 10; // a killed process keeps it until its memory is given back
    for (int i = 1;; ++i) {
      make(output); // again: the one before removes it when it ends
      const auto owner = lock_.take(path_, /*create=*/true);
      if (!owner) return;
      if (i == kTries)
        raise<DataError>("{} is in use by {}\n  try: another --output, or wait until it ends",
                         path_.string(), *owner);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }

  const fs::path& path() const { return path_; }
  fs::path state_file() const { return path_ / "state.json"; }
  void remove() const {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

 private:
  void make(const std::string& output) const {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error)
      raise<DataError>("--output {}: {} cannot be created: {}\n  try: another --output", output,
                       path_.string(), error.message());
  }

  fs::path path_;
  RunLock lock_;
};

/// What a resumed call must have in common with the one before.
Json fingerprint(const PreprocessOptions& options, const InputFiles& input) {
  const Tokenizer& tokenizer = *options.tokenizer;
  std::vector<int32_t> probe;
  tokenizer.encode("The quick brown fox, 1234 \xC3\xA9t\xC3\xA9s; if (x) {\n\treturn 0;\n}", probe);
  Json files = Json::array();
  for (const InputFile& file : input.files) {
    std::error_code error;
    const auto time = fs::is_regular_file(file.path, error)
                          ? fs::last_write_time(file.path, error).time_since_epoch().count()
                          : 0;
    files.push_back({file.path.string(), file.size_bytes, time});
  }
  return {{"files", files},
          {"tokenizer", {tokenizer.name(), tokenizer.vocab_size(), tokenizer.eod(), probe}},
          {"json_keys", options.json_keys},
          {"append_eod", options.append_eod},
          {"split_sentences", options.split_sentences},
          {"on_bad_input", options.on_bad_input == OnBadInput::kSkip ? "skip" : "error"},
          {"max_document_bytes", options.max_document_bytes}};
}

/// A key as a part of a file's name.
std::string name_of(std::string key) {
  std::ranges::replace(key, '/', '_');
  return key;
}

class Preprocessor {
 public:
  explicit Preprocessor(const PreprocessOptions& options)
      : options_(options), input_(find_files(options.inputs)), folder_(options.output),
        skip_list_(options.output + "_skipped.jsonl", folder_.path()) {
    for (const std::string& key : options.json_keys)
      result_.prefixes.push_back(fmt::format("{}_{}_{}", options.output, name_of(key),
                                             options.split_sentences ? "sentence" : "document"));
    result_.report.ignored_files = input_.ignored;
    for (const InputFile& file : input_.files) progress_.total_bytes += file.size_bytes;
    fingerprint_ = fingerprint(options, input_);
  }

  PreprocessResult run() {
    const bool finished = load();
    if (!finished) {
      check_outputs();
      open_writers();
      try {
        encode_all();
        require_documents();
      } catch (const NotUsable&) { // nothing of it helps another call
        writers_.clear();
        folder_.remove();
        throw;
      }
      save(/*finished=*/true);
    }
    commit(finished);
    folder_.remove();
    return std::move(result_);
  }

 private:
  static InputFiles find_files(const std::vector<std::string>& inputs) {
    if (inputs.size() == 1 && inputs[0] == "-")
      return {{{.path = "/dev/stdin", .format = FileFormat::kJsonLines}}, 0};
    return find_input_files(inputs, "--input");
  }

  /// Input that another call with the same options finds no better.
  struct NotUsable : DataError {
    using DataError::DataError;
  };

  /// Ends the call at the first bad input of a block.
  [[noreturn]] void refuse(const InputReport& block) {
    const SkippedInput& first = block.skips().at(0);
    // A file that cannot be read now may be readable later, and hours of work are not thrown away.
    const bool broken = block.skipped(BadInput::kBrokenFile) > 0;
    if (saved_bytes_ == 0 && !(broken && result_.report.documents > 0))
      throw NotUsable(with_name("--input ", first.file, first.to_string()) +
                      remedy(first, result_.report.documents + block.documents > 0));
    save(/*finished=*/false);
    raise<DataError>("{}\n  try: {}--on-bad-input skip to leave such input out",
                     with_name("--input ", first.file, first.to_string()),
                     broken ? "the same command again, which resumes, or " : "");
  }

  /// What to try for the first bad input; leaving it out only where documents are left.
  static std::string remedy(const SkippedInput& input, bool others) {
    if (others) return "\n  try: --on-bad-input skip to leave such input out";
    if (!input.key.empty()) return "\n  try: --json-keys " + shell_word(input.key);
    return "\n  try: --input with JSON Lines ({\"text\": \"...\"} on each line), a JSON array of "
           "such "
           "objects, or text files";
  }

  void require_documents() const {
    const InputReport& report = result_.report;
    if (report.documents > 0) return;
    std::string why;
    if (first_skip_) {
      why = fmt::format("{} skipped, the first: {}", report.total_skipped(),
                        first_skip_->to_string());
    } else if (report.empty_documents > 0) {
      why = counted(report.empty_documents, "empty document");
    } else {
      why = "the input is empty";
    }
    throw NotUsable(fmt::format("--input {} contains no documents ({}), so nothing is written{}",
                                fmt::join(options_.inputs, " "), why,
                                remedy(first_skip_.value_or(SkippedInput{}), false)));
  }

  fs::path folder_of(size_t key) const { return folder_.path() / fmt::format("key{}", key); }

  /// Whether an earlier call with these options, or one that stopped at bad input where this one
  /// leaves it out, saved `state`.
  bool is_own(const Json& state) const {
    if (!state.contains("fingerprint")) return false;
    Json earlier = state["fingerprint"];
    if (options_.on_bad_input == OnBadInput::kSkip && earlier.is_object())
      earlier["on_bad_input"] = "skip";
    return earlier == fingerprint_;
  }

  void check_outputs() const {
    std::vector<fs::path> outputs;
    for (const std::string& prefix : result_.prefixes)
      for (fs::path& file : corpus_files(prefix)) outputs.push_back(std::move(file));
    outputs.push_back(skip_list_.target());
    try {
      for (const std::string& prefix : result_.prefixes) require_corpus(prefix);
      for (const fs::path& output : outputs) refuse_input(output);
      if (!options_.overwrite) refuse_existing(outputs);
    } catch (const ConfigError&) {
      std::error_code error;
      if (!fs::exists(folder_.state_file(), error)) folder_.remove(); // this call's own
      throw;
    }
  }

  /// Throws if the output would replace an input.
  void refuse_input(const fs::path& output) const {
    std::error_code error;
    for (const InputFile& file : input_.files)
      if (fs::equivalent(output, file.path, error))
        raise<ConfigError>("{} is both an input and an output\n  try: --output {}", output.string(),
                           shell_word(options_.output + "-2"));
  }

  /// Takes up the state of an earlier call; true if that one had only to commit.
  bool load() {
    positions_.resize(result_.prefixes.size());
    std::error_code error;
    if (!fs::exists(folder_.state_file(), error)) return false;
    const Json state = read_json(folder_.state_file());
    const std::string where = folder_.state_file().string();
    if (!is_own(state)) {
      raise<DataError>("{} holds partial output made with other files, another tokenizer or other "
                       "options\n  try: rm -r {} to start again, or the original options to resume",
                       folder_.path().string(), shell_word(folder_.path().string()));
    }
    begin_ = {json_get<int64_t>(state, "file", where), json_get<int64_t>(state, "records", where)};
    const auto at = json_get<std::vector<int64_t>>(state, "positions", where);
    if (at.size() != 3 * positions_.size() || begin_.file < 0 || begin_.records < 0 ||
        std::any_of(at.begin(), at.end(), [](int64_t n) { return n < 0; })) {
      raise<DataError>("{}: positions are not valid\n  try: remove {}", where,
                       shell_word(folder_.path().string()));
    }
    for (size_t k = 0; k < positions_.size(); ++k)
      positions_[k] = {at[3 * k], at[3 * k + 1], at[3 * k + 2]};
    InputReport& report = result_.report;
    report.files = json_get<int64_t>(state, "num_files", where);
    report.documents = json_get<int64_t>(state, "documents", where);
    report.empty_documents = json_get<int64_t>(state, "empty_documents", where);
    report.text_bytes = json_get<int64_t>(state, "text_bytes", where);
    report.tokens = json_get<int64_t>(state, "tokens", where);
    const auto skipped = json_get<std::vector<int64_t>>(state, "skipped", where);
    const auto messages = json_get<std::vector<std::string>>(state, "messages", where);
    report.restore_skips(skipped, messages);
    skip_list_bytes_ = json_get<int64_t>(state, "skip_list_bytes", where);
    if (skip_list_bytes_ < 0)
      raise<DataError>("{}: skip_list_bytes is not valid\n  try: remove {}", where,
                       shell_word(folder_.path().string()));
    progress_.resumed_text_bytes = report.text_bytes;
    result_.resumed = true;
    return json_get<bool>(state, "finished", where);
  }

  void save(bool finished) {
    std::vector<int64_t> at;
    for (const auto& writer : writers_) {
      writer->sync();
      const IndexedWriter::Position& p = writer->position();
      at.insert(at.end(), {p.tokens, p.sequences, p.documents});
    }
    skip_list_.sync();
    const InputReport& report = result_.report;
    std::vector<int64_t> skipped;
    for (size_t kind = 0; kind < kBadInputKinds; ++kind)
      skipped.push_back(report.skipped(static_cast<BadInput>(kind)));
    const Json state{{"fingerprint", fingerprint_},
                     {"finished", finished},
                     {"file", begin_.file},
                     {"records", begin_.records},
                     {"positions", at},
                     {"num_files", report.files},
                     {"documents", report.documents},
                     {"empty_documents", report.empty_documents},
                     {"text_bytes", report.text_bytes},
                     {"tokens", report.tokens},
                     {"skipped", skipped},
                     {"messages", report.messages()},
                     {"skip_list_bytes", skip_list_.bytes()}};
    write_file_atomically(folder_.state_file(), dump_json(state));
    saved_bytes_ = report.text_bytes;
  }

  void open_writers() {
    skip_list_.open(skip_list_bytes_);
    for (size_t k = 0; k < result_.prefixes.size(); ++k) {
      writers_.push_back(std::make_unique<IndexedWriter>(
          result_.prefixes[k],
          IndexedWriter::Options{.dtype = dtype_for_vocabulary(options_.tokenizer->vocab_size()),
                                 .folder = folder_of(k),
                                 .resume = positions_[k],
                                 .replace = options_.overwrite}));
    }
    save(/*finished=*/false);
  }

  void encode_all() {
    const double begin = monotonic_s();
    double told = begin;
    Pipeline pipeline(options_, input_.files, begin_);
    while (std::optional<EncodedBlock> encoded = pipeline.next()) {
      if (options_.on_bad_input == OnBadInput::kError && encoded->report.total_skipped() > 0)
        refuse(encoded->report);
      const std::vector<SkippedInput> skips = encoded->report.take_skips();
      if (!first_skip_ && !skips.empty()) first_skip_ = skips[0];
      skip_list_.add(skips);
      for (size_t k = 0; k < writers_.size(); ++k) write(encoded->keys[k], *writers_[k]);
      result_.report.merge(encoded->report);
      begin_ = encoded->block.end;
      progress_.disk_bytes = encoded->block.disk_bytes;
      if (result_.report.text_bytes - saved_bytes_ >= options_.save_bytes) save(false);
      if (const double now = monotonic_s(); options_.progress && now - told >= kProgressEvery) {
        tell(now - begin);
        told = now;
      }
    }
    if (options_.progress) tell(monotonic_s() - begin);
  }

  static void write(const Encoded& encoded, IndexedWriter& writer) {
    const int32_t* tokens = encoded.tokens.data();
    auto length = encoded.lengths.begin();
    for (int64_t sequences : encoded.sequences) {
      for (; sequences > 0; --sequences, ++length) {
        writer.add_sequence({tokens, static_cast<size_t>(*length)});
        tokens += *length;
      }
      writer.end_document();
    }
  }

  void tell(double seconds) {
    progress_.seconds = seconds;
    progress_.text_bytes = result_.report.text_bytes;
    progress_.documents = result_.report.documents + result_.report.empty_documents;
    progress_.tokens = result_.report.tokens;
    progress_.bad = result_.report.total_skipped();
    options_.progress(progress_);
  }

  void commit(bool again) {
    const bool none = result_.report.total_skipped() == 0;
    skip_list_.commit(none);
    if (!none) result_.skip_list = skip_list_.target();
    for (size_t k = 0; k < result_.prefixes.size(); ++k) {
      if (!again) {
        writers_[k]->commit();
        continue;
      }
      // A call that was killed here may have done some.
      const fs::path folder = folder_of(k);
      if (!fs::exists(folder) || IndexedWriter::finish_commit(result_.prefixes[k], folder))
        continue;
      IndexedWriter(result_.prefixes[k],
                    {.dtype = dtype_for_vocabulary(options_.tokenizer->vocab_size()),
                     .folder = folder,
                     .resume = positions_[k]})
          .commit();
    }
  }

  const PreprocessOptions& options_;
  InputFiles input_;
  PartialFolder folder_;
  SkipList skip_list_;
  int64_t skip_list_bytes_ = 0;
  std::optional<SkippedInput> first_skip_;
  Json fingerprint_;
  InputPosition begin_;
  std::vector<IndexedWriter::Position> positions_;
  std::vector<std::unique_ptr<IndexedWriter>> writers_;
  PreprocessResult result_;
  PreprocessProgress progress_;
  int64_t saved_bytes_ = 0;
};

} // namespace

std::string to_string(const PreprocessProgress& p) {
  const double seconds = std::max(p.seconds, 1e-9);
  const double fresh = static_cast<double>(p.text_bytes - p.resumed_text_bytes);
  const double share = p.text_bytes > 0 ? fresh / static_cast<double>(p.text_bytes) : 1;
  std::string text;
  if (p.total_bytes > 0) {
    text = fmt::format("{:.1f} % | ", 100.0 * static_cast<double>(p.disk_bytes) /
                                          static_cast<double>(p.total_bytes));
  }
  text += fmt::format("{:.1f} MB/s | {} docs/s | {} tokens/s", fresh / 1e6 / seconds,
                      format_count(static_cast<double>(p.documents) * share / seconds),
                      format_count(static_cast<double>(p.tokens) * share / seconds));
  if (p.bad > 0) text += fmt::format(" | {} bad", p.bad);
  if (p.total_bytes > 0) {
    text += " | ETA " + format_duration(eta_s(static_cast<double>(p.disk_bytes),
                                              static_cast<double>(p.total_bytes), seconds));
  }
  return text;
}

PreprocessResult preprocess(const PreprocessOptions& options) {
  if (options.tokenizer == nullptr || options.json_keys.empty())
    raise<ConfigError>("preprocess needs a tokenizer and at least one key");
  std::map<std::string, std::string> keys; // by the names of their corpora
  for (const std::string& key : options.json_keys) keys.try_emplace(name_of(key), key);
  if (keys.size() < options.json_keys.size()) {
    std::vector<std::string> once;
    for (const auto& [name, key] : keys) once.push_back(key);
    raise<ConfigError>("--json-keys {} names a corpus twice\n  try: --json-keys {}",
                       fmt::join(options.json_keys, ","),
                       shell_word(fmt::format("{}", fmt::join(once, ","))));
  }
  corpus_files(options.output); // throws if that is no name
  return Preprocessor(options).run();
}

} // namespace pentatron::data
