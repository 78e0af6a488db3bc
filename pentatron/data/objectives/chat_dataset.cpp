#include "pentatron/data/objectives/chat_dataset.h"

#include <algorithm>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/input_files.h"
#include "pentatron/data/permutation.h"
#include "pentatron/data/record_reader.h"

namespace pentatron::data {

namespace {

/// The messages of a line, with the names of the other common form brought to these.
Json messages_of(const Json& line, const std::string& where) {
  if (line.is_object() && line.contains("messages")) return line["messages"];
  if (!line.is_object() || !line.contains("conversations") || !line["conversations"].is_array())
    raise<DataError>("{} has no list \"messages\"", where);
  Json messages = Json::array();
  for (const Json& turn : line["conversations"]) {
    std::string role = json_get<std::string>(turn, "from", where);
    if (role == "human") role = "user";
    if (role == "gpt") role = "assistant";
    messages.push_back({{"role", role}, {"content", json_get<std::string>(turn, "value", where)}});
  }
  return messages;
}

} // namespace

std::string chatml(const Json& messages, bool add_generation_prompt) {
  std::string text;
  for (const Json& message : messages) {
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n",
                        json_get<std::string>(message, "role", "a message"),
                        json_get<std::string>(message, "content", "a message"));
  }
  if (add_generation_prompt) text += "<|im_start|>assistant\n";
  return text;
}

ChatTokens tokenize_chat(const Json& messages, const ChatTemplate& chat_template,
                         const Tokenizer& tokenizer) {
  if (!messages.is_array() || messages.empty()) throw DataError("a conversation has no messages");
  ChatTokens chat;
  std::string done; // text that is tokenized
  const auto go_on = [&](std::string text, bool is_answer) {
    if (!text.starts_with(done)) {
      throw DataError("the chat template changes earlier text when a message is added, so the "
                      "answers cannot be located");
    }
    tokenizer.encode(std::string_view(text).substr(done.size()), chat.tokens);
    chat.is_answer.resize(chat.tokens.size(), is_answer ? 1 : 0);
    done = std::move(text);
  };
  Json so_far = Json::array();
  for (const Json& message : messages) {
    if (!message.is_object()) throw DataError("a message of a conversation is not an object");
    if (json_get<std::string>(message, "role", "a message") == "assistant") {
      go_on(chat_template(so_far, true), false);
      so_far.push_back(message);
      go_on(chat_template(so_far, false), true);
    } else {
      so_far.push_back(message);
    }
  }
  go_on(chat_template(so_far, false), false);
  return chat;
}

ChatDataset::ChatDataset(const std::vector<std::string>& paths,
                         std::shared_ptr<const Tokenizer> tokenizer,
                         const ChatTemplate& chat_template, const Options& options)
    : options_(options), eod_(tokenizer->eod()), report_(options.on_bad_input) {
  if (options_.sequence_length < 1)
    raise<ConfigError>("sequence length {} is not positive", options_.sequence_length);
  for (const InputFile& file : find_input_files(paths).files) {
    if (file.format == FileFormat::kParquet)
      raise<DataError>(
          "{} is a Parquet file, of which only columns of text are read, not "
          "conversations\n  try: JSON Lines ({{\"messages\": [...]}} on each line), or a "
          "JSON array of such objects",
          file.path.string());
    try {
      read(file.path, chat_template, *tokenizer);
    } catch (const MalformedArray& error) { // the elements before the error stay
      report_.bad(BadInput::kBrokenFile, damaged_file(file.path, error.what()));
    }
    ++report_.files;
  }
  pack();
  report_.tokens = static_cast<int64_t>(tokens_.size());
  if (packs_.empty()) throw DataError("there is no conversation with an answer");
}

void ChatDataset::read(const std::filesystem::path& file, const ChatTemplate& chat_template,
                       const Tokenizer& tokenizer) {
  const auto source = open_source(file);
  RecordReader records(*source, options_.max_line_bytes, file.string());
  std::string_view record;
  for (auto status = records.next(record); status != RecordReader::Status::kEnd;
       status = records.next(record)) {
    const std::string where = fmt::format(
        "{}: {} {}", file.string(), records.is_array() ? "element" : "line", records.number());
    const auto bad = [&](BadInput kind, std::string reason) {
      report_.bad(kind, {.file = file.string(),
                         .number = records.number(),
                         .element = records.is_array(),
                         .reason = std::move(reason)});
    };
    if (status == RecordReader::Status::kTooLong) {
      bad(BadInput::kLongLine, fmt::format("has {} bytes, over the limit of {}",
                                           records.record_bytes(), options_.max_line_bytes));
      continue;
    }
    if (record.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      const Json messages = messages_of(parse_json(record, where), where);
      add(tokenize_chat(messages, chat_template, tokenizer));
      ++report_.documents;
      report_.text_bytes += static_cast<int64_t>(record.size());
    } catch (const DataError& error) {
      std::string_view message = error.what();
      if (message.starts_with(where)) message.remove_prefix(where.size());
      while (message.starts_with(':') || message.starts_with(' ')) message.remove_prefix(1);
      bad(BadInput::kBadJson, fmt::format("is not a conversation: {}", message));
    }
  }
}

void ChatDataset::add(ChatTokens chat) {
  chat.tokens.push_back(eod_);
  // That the answer is over is learned with its last token.
  chat.is_answer.push_back(chat.is_answer.empty() ? 0 : chat.is_answer.back());
  const auto room = static_cast<size_t>(options_.sequence_length) + 1;
  if (chat.tokens.size() > room) {
    ++cut_;
    chat.tokens.resize(room);
    chat.is_answer.resize(room);
  }
  // The first token is never a label.
  if (std::find(chat.is_answer.begin() + 1, chat.is_answer.end(), 1) == chat.is_answer.end()) {
    ++left_out_;
    return;
  }
  tokens_.insert(tokens_.end(), chat.tokens.begin(), chat.tokens.end());
  is_answer_.insert(is_answer_.end(), chat.is_answer.begin(), chat.is_answer.end());
  begins_.push_back(static_cast<int64_t>(tokens_.size()));
}

void ChatDataset::pack() {
  const int64_t room = options_.sequence_length + 1;
  int64_t used = room;
  for (int64_t c = 0; c < num_conversations(); ++c) {
    const int64_t length = begins_[static_cast<size_t>(c + 1)] - begins_[static_cast<size_t>(c)];
    if (!options_.pack || used + length > room) {
      packs_.push_back(c);
      used = 0;
    }
    used += length;
  }
}

void ChatDataset::sample_with_mask(int64_t n, int64_t* tokens, uint8_t* loss_mask) const {
  PT_DCHECK(n >= 0);
  const auto count = static_cast<uint64_t>(packs_.size());
  const auto number = static_cast<uint64_t>(n);
  const Permutation order(options_.seed, "chat order", number / count, count);
  const auto pack = static_cast<size_t>(order(number % count));
  const int64_t last = pack + 1 < packs_.size() ? packs_[pack + 1] : num_conversations();
  const int64_t begin = begins_[static_cast<size_t>(packs_[pack])];
  const int64_t length = begins_[static_cast<size_t>(last)] - begin;
  const int64_t s = options_.sequence_length;
  std::copy_n(tokens_.begin() + begin, length, tokens);
  std::fill(tokens + length, tokens + s + 1, int64_t{eod_});
  for (int64_t i = 0; i < s; ++i)
    loss_mask[i] = i + 1 < length ? is_answer_[static_cast<size_t>(begin + i + 1)] : 0;
  // What follows another conversation's end is not learned from that end.
  for (int64_t c = packs_[pack] + 1; c < last; ++c)
    loss_mask[begins_[static_cast<size_t>(c)] - begin - 1] = 0;
}

void ChatDataset::sample(int64_t n, int64_t* tokens) const {
  std::vector<uint8_t> mask(static_cast<size_t>(options_.sequence_length));
  sample_with_mask(n, tokens, mask.data());
}

} // namespace pentatron::data
