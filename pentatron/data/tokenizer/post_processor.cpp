#include "pentatron/data/tokenizer/post_processor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "pentatron/base/error.h"

namespace pentatron::data::tokenizer {

namespace {

int32_t checked_id(const Json& id, std::string_view where) {
  if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
    raise<DataError>("an id of {} is {}", where, dump_json(id));
  return static_cast<int32_t>(id.get<int64_t>());
}

/// The special tokens that the template knows by name.
std::vector<int32_t> special_ids(const Json& json, const std::string& name) {
  if (!json.contains("special_tokens") || !json["special_tokens"].is_object() ||
      !json["special_tokens"].contains(name))
    raise<DataError>("TemplateProcessing has no special token {}", name);
  const Json& special = json["special_tokens"][name];
  if (!special.is_object() || !special.contains("ids") || !special["ids"].is_array())
    raise<DataError>("the special token {} of TemplateProcessing has no ids", name);
  std::vector<int32_t> ids;
  for (const Json& id : special["ids"]) ids.push_back(checked_id(id, name));
  return ids;
}

int32_t type_id(const Json& piece) {
  return piece.is_object() && piece.contains("type_id") ? checked_id(piece["type_id"], "a piece")
                                                        : 0;
}

/// One of the lists `single` and `pair`, with each text once.
std::vector<PostProcessor::Piece> template_pieces(const Json& json, const char* key) {
  if (!json.contains(key) || !json[key].is_array())
    raise<DataError>("the post-processor TemplateProcessing has no list `{}`", key);
  std::vector<PostProcessor::Piece> pieces;
  int seen[2] = {};
  for (const Json& piece : json[key]) {
    if (piece.is_object() && piece.contains("Sequence")) {
      const auto text = json_get<std::string>(piece["Sequence"], "id", "a Sequence");
      if (text != "A" && text != "B")
        raise<DataError>("a Sequence of TemplateProcessing is {}, not A or B", text);
      if (++seen[text == "B" ? 1 : 0] > 1)
        throw DataError("a template of TemplateProcessing that has the text twice is not "
                        "supported");
      pieces.push_back({text == "A" ? PostProcessor::Piece::kFirst : PostProcessor::Piece::kSecond,
                        type_id(piece["Sequence"])});
      continue;
    }
    if (!piece.is_object() || !piece.contains("SpecialToken"))
      raise<DataError>("a piece of the template of TemplateProcessing is {}", dump_json(piece));
    const Json& special = piece["SpecialToken"];
    for (const int32_t id :
         special_ids(json, json_get<std::string>(special, "id", "a SpecialToken")))
      pieces.push_back({id, type_id(special)});
  }
  const bool pair = std::string_view(key) == "pair";
  if (seen[0] != 1 || seen[1] != (pair ? 1 : 0))
    raise<DataError>("the template `{}` of TemplateProcessing does not contain {}", key,
                     pair ? "the two texts" : "the text alone");
  return pieces;
}

PostProcessor make_template(const Json& json) {
  PostProcessor result{.single = template_pieces(json, "single")};
  if (json.contains("pair")) result.pair = template_pieces(json, "pair");
  return result;
}

PostProcessor make_bert(const Json& json, std::string_view type) {
  const auto special = [&](const char* key) {
    if (!json.contains(key) || !json[key].is_array() || json[key].size() != 2)
      raise<DataError>("the post-processor {} has no token `{}` with its id", type, key);
    return checked_id(json[key][1], key);
  };
  using Piece = PostProcessor::Piece;
  const int32_t cls = special("cls"), sep = special("sep");
  PostProcessor result = bert_post_processor(cls, sep);
  if (type == "RobertaProcessing") { // knows no types, and separates by two tokens
    result.pair = result.single;
    for (const Piece& piece : {Piece{sep, 0}, Piece{Piece::kSecond, 0}, Piece{sep, 0}})
      result.pair.push_back(piece);
  }
  return result;
}

/// The pieces of `outer` with those of `inner` in the place of the text.
std::vector<PostProcessor::Piece> nested(const std::vector<PostProcessor::Piece>& outer,
                                         const std::vector<PostProcessor::Piece>& inner) {
  std::vector<PostProcessor::Piece> pieces;
  for (const PostProcessor::Piece& piece : outer) {
    if (piece.token == PostProcessor::Piece::kFirst)
      pieces.insert(pieces.end(), inner.begin(), inner.end());
    else
      pieces.push_back(piece);
  }
  return pieces;
}

PostProcessor make_post_processor_step(const Json& json, int depth) {
  const auto type = json_get<std::string>(json, "type", "a post-processor");
  if (type == "ByteLevel") return {}; // moves offsets only
  if (type == "TemplateProcessing") return make_template(json);
  if (type == "BertProcessing" || type == "RobertaProcessing") return make_bert(json, type);
  if (type != "Sequence") raise<DataError>("the post-processor type {} is not supported", type);
  if (depth > 8 || !json.contains("processors") || !json["processors"].is_array())
    throw DataError("a post-processor of type Sequence has no list `processors`");
  PostProcessor all;
  bool plain = true; // no step before has added anything
  for (const Json& step : json["processors"]) {
    const PostProcessor next = make_post_processor_step(step, depth + 1);
    const bool adds = next.single.size() > 1 || next.pair.size() > 2;
    all.single = nested(next.single, all.single);
    if (adds || !next.has_pair) {
      all.pair = next.pair;
      all.has_pair = plain && next.has_pair;
      plain = false;
    }
  }
  return all;
}

/// The lengths of two texts that together have at most `room` tokens.
std::pair<size_t, size_t> shortened(size_t first, size_t second, size_t room) {
  const bool swap = first > second;
  if (swap) std::swap(first, second); // first is the shorter
  second = std::min(second, first > room ? first : std::max(first, room - first));
  if (first + second > room) {
    first = room / 2;
    second = first + room % 2;
  }
  return swap ? std::pair(second, first) : std::pair(first, second);
}

} // namespace

PostProcessor make_post_processor(const Json& json) {
  return json.is_null() ? PostProcessor{} : make_post_processor_step(json, 0);
}

PostProcessor bert_post_processor(int32_t cls, int32_t sep) {
  using Piece = PostProcessor::Piece;
  return {.single = {{cls, 0}, {Piece::kFirst, 0}, {sep, 0}},
          .pair = {{cls, 0}, {Piece::kFirst, 0}, {sep, 0}, {Piece::kSecond, 1}, {sep, 1}}};
}

std::vector<int32_t> PostProcessor::before() const {
  std::vector<int32_t> ids;
  for (const Piece& piece : single) {
    if (piece.token == Piece::kFirst) break;
    ids.push_back(piece.token);
  }
  return ids;
}

std::vector<int32_t> PostProcessor::after() const {
  std::vector<int32_t> ids;
  bool text_seen = false;
  for (const Piece& piece : single) {
    if (text_seen) ids.push_back(piece.token);
    text_seen = text_seen || piece.token == Piece::kFirst;
  }
  return ids;
}

EncodedPair post_process(const PostProcessor& processor, std::vector<int32_t> first,
                         std::optional<std::vector<int32_t>> second, int64_t max_length) {
  if (second && !processor.has_pair)
    throw DataError("the post-processor of this tokenizer has several steps that add tokens, which "
                    "is not supported for a pair of texts");
  const std::vector<PostProcessor::Piece>& pieces = second ? processor.pair : processor.single;
  const auto special = static_cast<int64_t>(pieces.size() - (second ? 2 : 1));
  if (max_length > 0) {
    if (special >= max_length)
      raise<DataError>("a length of {} leaves no room for text beside {} special tokens",
                       max_length, special);
    const auto room = static_cast<size_t>(max_length - special);
    if (!second) {
      first.resize(std::min(first.size(), room));
    } else if (first.size() + second->size() > room) {
      const auto [a, b] = shortened(first.size(), second->size(), room);
      first.resize(std::min(first.size(), a));
      second->resize(std::min(second->size(), b));
    }
  }
  EncodedPair out;
  for (const PostProcessor::Piece& piece : pieces) {
    if (piece.token >= 0) {
      out.tokens.push_back(piece.token);
    } else {
      const std::vector<int32_t>& text =
          piece.token == PostProcessor::Piece::kFirst ? first : *second;
      out.tokens.insert(out.tokens.end(), text.begin(), text.end());
    }
    out.types.resize(out.tokens.size(), piece.type);
  }
  return out;
}

} // namespace pentatron::data::tokenizer
