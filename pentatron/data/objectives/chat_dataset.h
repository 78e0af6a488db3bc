/// Conversations to fine-tune on: the loss is on the answers alone.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/input_report.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

/// The text of `messages` (a list of {"role", "content"}), with the beginning of an answer behind
/// it if asked for.
using ChatTemplate = std::function<std::string(const Json& messages, bool add_generation_prompt)>;

/// "<|im_start|>user\nHello<|im_end|>\n" for each message.
std::string chatml(const Json& messages, bool add_generation_prompt);

struct ChatTokens {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> is_answer; ///< of each token
};

/// The tokens of one conversation. An answer is what the template adds for a message of the role
/// "assistant" after the beginning of an answer. Throws DataError if `messages` are none, or if the
/// template does not write a longer conversation by going on after a shorter one.
ChatTokens tokenize_chat(const Json& messages, const ChatTemplate& chat_template,
                         const Tokenizer& tokenizer);

/// JSON lines, or a JSON array of objects, with a member "messages": [{"role", "content"}, ...] (or
/// "conversations": [{"from", "value"}, ...], roles human and gpt), tokenized when opened. Samples
/// come in a new random order every epoch and depend on (file, options, n) alone. Throws DataError
/// for a Parquet file.
class ChatDataset final : public TokenDataset {
 public:
  struct Options {
    int64_t sequence_length = 0;
    uint64_t seed = 0;
    /// Puts conversations behind one another while they fit: an index, made when opened. Each ends
    /// with eod(), so that attention and positions can begin anew.
    bool pack = true;
    OnBadInput on_bad_input = OnBadInput::kError;
    int64_t max_line_bytes = int64_t{256} << 20;
  };
  ChatDataset(const std::vector<std::string>& paths, std::shared_ptr<const Tokenizer> tokenizer,
              const ChatTemplate& chat_template, const Options& options);

  int64_t sequence_length() const override { return options_.sequence_length; }
  int64_t samples_per_epoch() const override { return static_cast<int64_t>(packs_.size()); }
  void sample(int64_t n, int64_t* tokens) const override;
  void sample_with_mask(int64_t n, int64_t* tokens, uint8_t* loss_mask) const override;

  const InputReport& report() const { return report_; }
  int64_t num_conversations() const { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t cut_conversations() const { return cut_; } ///< longer than a sample
  int64_t left_out() const { return left_out_; }     ///< without an answer within a sample

 private:
  void read(const std::filesystem::path& file, const ChatTemplate& chat_template,
            const Tokenizer& tokenizer);
  void add(ChatTokens chat);
  void pack();

  Options options_;
  int32_t eod_;
  InputReport report_;
  std::vector<int32_t> tokens_; // of all conversations, each with its eod
  std::vector<uint8_t> is_answer_;
  std::vector<int64_t> begins_{0};
  std::vector<int64_t> packs_; // the first conversation of each sample
  int64_t cut_ = 0;
  int64_t left_out_ = 0;
};

} // namespace pentatron::data
