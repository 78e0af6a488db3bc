#include "pentatron/evaluation/generate_answers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "pentatron/base/json.h"
#include "pentatron/base/text.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/generate/generate.h"

namespace pentatron::evaluation {

namespace {

using Batch = std::vector<size_t>; ///< numbers of prompts

/// Of prompts with equal settings, from the longest to the shortest.
std::vector<Batch> make_batches(const std::vector<Prompt>& prompts, int64_t batch_tokens) {
  std::map<const Generation*, Batch> by_settings;
  std::vector<const Generation*> order;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Batch& batch = by_settings[prompts[i].generation];
    if (batch.empty()) order.push_back(prompts[i].generation);
    batch.push_back(i);
  }
  std::vector<Batch> batches;
  for (const Generation* generation : order) {
    Batch& all = by_settings[generation];
    std::ranges::stable_sort(all, [&](size_t a, size_t b) {
      return prompts[a].tokens.size() > prompts[b].tokens.size();
    });
    int64_t tokens = batch_tokens + 1;
    for (const size_t i : all) {
      const int64_t own = std::ssize(prompts[i].tokens) + generation->max_gen_toks;
      tokens += own;
      if (tokens > batch_tokens) {
        batches.emplace_back();
        tokens = own;
      }
      batches.back().push_back(i);
    }
  }
  return batches;
}

/// With replacement characters for what a text that ends within a character lacks.
std::string valid_utf8(const std::string& text) {
  return is_utf8(text) ? text : parse_json(dump_json(Json(text)), "a text").get<std::string>();
}

/// The text before the first of the stop strings, which are looked for one after another.
std::string cut(std::string text, const std::vector<std::string>& until) {
  for (const std::string& stop : until) text = text.substr(0, text.find(stop));
  return text;
}

class Writer {
 public:
  Writer(parallelize::ModelView model, const data::Tokenizer& tokenizer, const TextEnds& ends,
         std::vector<Prompt>& prompts, const AnswerOptions& options)
      : model_(std::move(model)), tokenizer_(tokenizer), ends_(ends), prompts_(prompts),
        options_(options) {}

  void write(const Batch& batch) {
    const Generation& generation = *prompts_[batch[0]].generation;
    std::vector<std::vector<int64_t>> tokens;
    for (const size_t i : batch) tokens.push_back(prompts_[i].tokens);
    std::vector<std::vector<int64_t>> written(batch.size());
    const auto stopped = [&](size_t text, const generate::Drawn& drawn) {
      // Rows of the vocabulary that the tokenizer does not know are drawn too, and have no text.
      if (drawn.token < tokenizer_.vocab_size()) written[text].push_back(drawn.token);
      const std::string so_far = tokenizer_.decode(written[text]);
      return std::ranges::none_of(generation.until, [&](const std::string& stop) {
        return so_far.find(stop) != std::string::npos;
      });
    };
    generate::generate(model_, tokens,
                       {.sampling = {.temperature = 0},
                        .max_new_tokens = generation.max_gen_toks,
                        .context = options_.max_length,
                        .stop_tokens = ends_.stop},
                       stopped);
    for (size_t b = 0; b < batch.size(); ++b) {
      Answer& answer = *prompts_[batch[b]].answer;
      answer.text = cut(valid_utf8(tokenizer_.decode(written[b])), generation.until);
      answer.tokens = std::ssize(written[b]);
    }
  }

 private:
  parallelize::ModelView model_;
  const data::Tokenizer& tokenizer_;
  const TextEnds& ends_;
  std::vector<Prompt>& prompts_;
  const AnswerOptions& options_;
};

} // namespace

void generate_answers(parallelize::ModelView model, const data::Tokenizer& tokenizer,
                      const TextEnds& ends, std::vector<Prompt>& prompts,
                      const AnswerOptions& options) {
  const std::vector<Batch> batches = make_batches(prompts, options.batch_tokens);
  Writer writer(std::move(model), tokenizer, ends, prompts, options);
  const size_t ranks = options.together ? 1 : static_cast<size_t>(options.dp.size());
  const size_t rank = options.together ? 0 : static_cast<size_t>(options.dp.rank());
  int64_t finished = 0;
  for (size_t first = 0; first < batches.size(); first += ranks) {
    if (first + rank < batches.size()) writer.write(batches[first + rank]);
    for (size_t i = first; i < std::min(batches.size(), first + ranks); ++i)
      finished += std::ssize(batches[i]);
    if (options.done) options.done(finished);
  }
  if (ranks == 1) return;
  for (size_t from = 0; from < ranks; ++from) {
    Json texts = Json::array();
    for (size_t b = from; b < batches.size(); b += ranks)
      for (const size_t i : batches[b]) texts.push_back(prompts[i].answer->text);
    const std::string sent =
        comm::broadcast_text(dump_json(texts), static_cast<int>(from), options.dp);
    texts = parse_json(sent, "answers of another rank");
    size_t next = 0;
    for (size_t b = from; b < batches.size(); b += ranks)
      for (const size_t i : batches[b]) prompts[i].answer->text = texts[next++].get<std::string>();
  }
}

} // namespace pentatron::evaluation
