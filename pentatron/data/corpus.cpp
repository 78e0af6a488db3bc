#include "pentatron/data/corpus.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/progress.h"
#include "pentatron/base/shared_objects.h"
#include "pentatron/config/config.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/split_sentences.h"

namespace pentatron::data {

namespace fs = std::filesystem;

struct Corpus::FileTokens {
  explicit FileTokens(int64_t vocab_size) : tokens(vocab_size) {}
  TokenBuffer tokens;
  std::vector<int64_t> document_begins;
  std::vector<int64_t> sentence_begins; // of a corpus with sentences
  InputReport report;
  std::exception_ptr error;
};

struct Corpus::State {
  ~State() {
    stop = true;
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
  }

  DatasetConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;
  Cut cut = Cut::kDocuments;
  InputFiles input;
  std::vector<FileTokens> files;
  std::vector<std::thread> threads;
  std::atomic<size_t> next_file{0};
  std::atomic<bool> stop{false};
  std::atomic<int64_t> disk_bytes{0}; // of the files, as far as they are done
  std::atomic<int64_t> work_done{0};  // reads and pieces of text that were encoded
  std::atomic<size_t> reading{0};     // threads that are not done; lowered with `mutex` held
  std::mutex mutex;
  std::condition_variable done;

  // Set once by finish().
  std::once_flag finished;
  std::exception_ptr error;
  std::vector<int64_t> file_begins;     // in the stream, one more than files
  std::vector<int64_t> document_begins; // in the stream, one more than documents
  std::vector<int64_t> sentence_begins; // in the stream
  InputReport report;
};

namespace {

/// Thrown to leave a file when the corpus is destroyed before it was read.
struct Stopped {};

/// Encodes pieces small enough for the scratch ids to stay in cache.
class TokenSink final : public DocumentSink {
 public:
  /// `sentence_begins`: null if documents are not cut.
  TokenSink(const Tokenizer& tokenizer, const std::atomic<bool>& stop,
            std::atomic<int64_t>& work_done, TokenBuffer& tokens,
            std::vector<int64_t>& document_begins, std::vector<int64_t>* sentence_begins)
      : tokenizer_(tokenizer), encoder_(tokenizer.make_encoder()), stop_(stop),
        work_done_(work_done), tokens_(tokens), document_begins_(document_begins),
        sentence_begins_(sentence_begins) {}

  void text(std::string_view piece) override {
    if (stop_.load(std::memory_order_relaxed)) throw Stopped{};
    if (sentence_begins_ != nullptr || !tokenizer_.encodes_in_pieces()) {
      whole_ += piece;
      return;
    }
    constexpr size_t kStep = size_t{1} << 15;
    while (!piece.empty()) {
      encode(piece.substr(0, kStep));
      piece.remove_prefix(std::min(kStep, piece.size()));
    }
  }

  void ids(std::span<const int32_t> tokens) override {
    if (stop_.load(std::memory_order_relaxed)) throw Stopped{};
    scratch_.assign(tokens.begin(), tokens.end());
    tokens_.append(scratch_);
  }

  void end_document() override {
    if (sentence_begins_ != nullptr) {
      encode_sentences();
    } else if (!whole_.empty()) {
      encode(whole_);
    }
    whole_.clear();
    tokens_.push_back(tokenizer_.eod());
    document_begins_.push_back(document_begin_);
    document_begin_ = tokens_.size();
  }

  void drop_document() override {
    whole_.clear();
    tokens_.truncate(document_begin_);
  }

 private:
  void encode(std::string_view text) {
    scratch_.clear();
    encoder_->encode(text, scratch_);
    tokens_.append(scratch_);
    ++work_done_;
  }

  void encode_sentences() {
    for (const std::string& sentence : spaced_sentences(whole_)) {
      const int64_t begin = tokens_.size();
      encode(sentence);
      if (tokens_.size() > begin) sentence_begins_->push_back(begin);
    }
  }

  const Tokenizer& tokenizer_;
  std::unique_ptr<Encoder> encoder_;
  const std::atomic<bool>& stop_;
  std::atomic<int64_t>& work_done_;
  TokenBuffer& tokens_;
  std::vector<int64_t>& document_begins_;
  std::vector<int64_t>* sentence_begins_;
  std::vector<int32_t> scratch_;
  std::string whole_;
  int64_t document_begin_ = 0;
};

/// dataset.path; empty: the corpus that comes with pentatron.
std::string path_of(const DatasetConfig& config) {
  return config.path.empty() ? default_corpus().string() : config.path;
}

} // namespace

Corpus::Corpus(const DatasetConfig& config, std::shared_ptr<const Tokenizer> tokenizer, Cut cut)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.cut = cut;
  state.config = config;
  state.tokenizer = std::move(tokenizer);
  state.config.path = path_of(config);
  state.input = find_input_files(split_paths(state.config.path));
  const size_t count = state.input.files.size();
  state.files.reserve(count);
  for (size_t i = 0; i < count; ++i) state.files.emplace_back(state.tokenizer->vocab_size());
  const size_t workers =
      std::min(count, static_cast<size_t>(std::max<int64_t>(config.num_workers, 1)));
  state.reading = workers;
  for (size_t i = 0; i < workers; ++i)
    state.threads.emplace_back([&state] {
      work(state);
      const std::lock_guard lock(state.mutex);
      --state.reading;
      state.done.notify_all();
    });
}

Corpus::~Corpus() = default;

void Corpus::work(State& state) {
  while (!state.stop) {
    const size_t index = state.next_file.fetch_add(1);
    if (index >= state.files.size()) return;
    try {
      read_file(state, index);
    } catch (const Stopped&) {
      return;
    } catch (...) {
      // Files before this one go on: the error reported is that of the first file, whatever the
      // threads' speed.
      state.files[index].error = std::current_exception();
      state.next_file = state.files.size();
    }
  }
}

void Corpus::read_file(State& state, size_t index) {
  FileTokens& out = state.files[index];
  const InputFile& file = state.input.files[index];
  out.report = InputReport(state.config.on_bad_input);
  if (state.tokenizer->encodes_in_pieces() && compression_of(file.path) == Compression::kNone) {
    out.tokens.reserve(file.size_bytes + 1);
  }
  TokenSink sink(*state.tokenizer, state.stop, state.work_done, out.tokens, out.document_begins,
                 state.cut == Cut::kSentences ? &out.sentence_begins : nullptr);
  // A text file that is encoded as a whole is read long before it is done.
  const bool at_the_end = file.format == FileFormat::kText &&
                          (state.cut == Cut::kSentences || !state.tokenizer->encodes_in_pieces());
  read_documents(file,
                 {.text_key = state.config.text_key,
                  .max_line_bytes = state.config.max_line_bytes,
                  .vocab_size = state.cut == Cut::kSentences ? 0 : state.tokenizer->vocab_size(),
                  .on_read =
                      [&](int64_t disk_bytes) {
                        ++state.work_done;
                        if (!at_the_end) state.disk_bytes += disk_bytes;
                      }},
                 sink, out.report);
  if (at_the_end) state.disk_bytes += file.size_bytes;
  out.tokens.shrink_to_fit();
}

/// A file's error, with what to try for the whole dataset.
std::exception_ptr Corpus::explained(std::exception_ptr error, bool others) {
  try {
    std::rethrow_exception(error);
  } catch (const BadInputError& bad) {
    const BadInputError told(bad.input(), remedy_for(bad.input(), others));
    return std::make_exception_ptr(
        DataError(with_name("dataset.path=", bad.input().file, told.what(),
                            "text files in UTF-8, JSON Lines or a JSON array of objects")));
  } catch (...) {
    return error;
  }
}

/// Tells of progress until the threads are done.
void Corpus::watch(const ReadingProgress::Options& options) const {
  State& state = *state_;
  int64_t work_told = 0, bytes_told = 0;
  ReadingProgress progress("reading text", state.input.files, options);
  std::unique_lock lock(state.mutex);
  while (!state.done.wait_for(lock, std::chrono::milliseconds(100),
                              [&] { return state.reading == 0; })) {
    const int64_t work = state.work_done, bytes = state.disk_bytes;
    if (std::exchange(work_told, work) != work)
      progress.add(bytes - std::exchange(bytes_told, bytes));
  }
}

void Corpus::finish() const {
  State& state = *state_;
  for (std::thread& thread : state.threads) thread.join();
  state.report = InputReport(state.config.on_bad_input);
  state.report.ignored_files = state.input.ignored;
  int64_t begin = 0;
  for (const FileTokens& file : state.files) {
    if (file.error) {
      state.error = explained(file.error, state.report.documents + file.report.documents > 0);
      return;
    }
    state.file_begins.push_back(begin);
    for (const int64_t document : file.document_begins)
      state.document_begins.push_back(begin + document);
    for (const int64_t sentence : file.sentence_begins)
      state.sentence_begins.push_back(begin + sentence);
    begin += file.tokens.size();
    state.report.merge(file.report);
  }
  state.file_begins.push_back(begin);
  state.document_begins.push_back(begin);
  state.report.tokens = begin;
  if (state.report.documents == 0)
    state.error = std::make_exception_ptr(no_documents(
        state.report, "dataset.path=" + state.config.path,
        "JSON Lines ({\"text\": \"...\"} on each line), a JSON array of such objects, or text "
        "files"));
}

void Corpus::wait(const ReadingProgress::Options& options) const {
  if (state_->reading > 0) watch(options);
  std::call_once(state_->finished, [this] { finish(); });
  if (state_->error) std::rethrow_exception(state_->error);
}

int64_t Corpus::size_tokens() const {
  wait();
  return state_->file_begins.back();
}

int64_t Corpus::num_documents() const {
  wait();
  return static_cast<int64_t>(state_->document_begins.size()) - 1;
}

int64_t Corpus::document_begin(int64_t i) const {
  wait();
  return state_->document_begins.at(static_cast<size_t>(i));
}

int64_t Corpus::first_sentence(int64_t token) const {
  wait();
  const std::vector<int64_t>& begins = state_->sentence_begins;
  return std::ranges::lower_bound(begins, token) - begins.begin();
}

int64_t Corpus::sentence_begin(int64_t i) const {
  wait();
  return state_->sentence_begins.at(static_cast<size_t>(i));
}

int64_t Corpus::sentence_end(int64_t i) const {
  const int64_t begin = sentence_begin(i);
  const std::vector<int64_t>& documents = state_->document_begins;
  // Each document ends with one token that belongs to no sentence.
  const int64_t end = *std::ranges::upper_bound(documents, begin) - 1;
  const auto next = static_cast<size_t>(i) + 1;
  return next < state_->sentence_begins.size() ? std::min(end, state_->sentence_begins[next]) : end;
}

const InputReport& Corpus::report() const {
  wait();
  return state_->report;
}

std::vector<std::filesystem::path> Corpus::files() const {
  std::vector<std::filesystem::path> paths;
  for (const InputFile& file : state_->input.files) paths.push_back(file.path);
  return paths;
}

int64_t Corpus::memory_bytes() const {
  wait();
  int64_t bytes = 0;
  for (const FileTokens& file : state_->files) bytes += file.tokens.memory_bytes();
  return bytes;
}

void Corpus::copy(int64_t begin, int64_t count, int64_t* out) const {
  wait();
  const std::vector<int64_t>& begins = state_->file_begins;
  PT_DCHECK(begin >= 0 && count >= 0 && begin + count <= begins.back());
  auto file =
      static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), begin) - begins.begin()) -
      1;
  while (count > 0) {
    const int64_t offset = begin - begins[file];
    const int64_t n = std::min(count, begins[file + 1] - begin);
    if (n > 0) state_->files[file].tokens.copy(offset, n, out);
    begin += n;
    out += n;
    count -= n;
    ++file;
  }
}

std::shared_ptr<const Corpus> shared_corpus(const DatasetConfig& config,
                                            const std::shared_ptr<const Tokenizer>& tokenizer,
                                            Corpus::Cut cut) {
  static SharedObjects<Corpus> corpora;
  // The corpus holds its tokenizer, so the address stays that of this one.
  std::string key = fmt::format("{} {} {}", fmt::ptr(tokenizer.get()), static_cast<int>(cut),
                                config::to_yaml(config));
  for (const InputFile& file : find_input_files(split_paths(path_of(config))).files) {
    std::error_code error;
    const auto changed = fs::last_write_time(file.path, error).time_since_epoch().count();
    key += fmt::format("{} {} {}\n", file.path.string(), file.size_bytes, changed);
  }
  return corpora.get(key, [&] { return std::make_shared<const Corpus>(config, tokenizer, cut); });
}

} // namespace pentatron::data
