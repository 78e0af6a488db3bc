/// BERT and RoBERTa, which differ in names, in where positions begin and in the head of samples.
/// Source: Devlin et al. 2019 (arXiv:1810.04805); Liu et al. 2019 (arXiv:1907.11692).
#include "pentatron/checkpoint/hf/families/all.h"

#include <set>

namespace pentatron::checkpoint {

namespace {

using models::ModelConfig;
using models::ModelHead;

/// "BertForMaskedLM" without "Bert"; empty if the file names none.
std::string task_of(const ConfigReader& in, std::string_view prefix) {
  const auto found = in.json().find("architectures");
  if (found == in.json().end() || !found->is_array() || found->empty() ||
      !found->front().is_string())
    return {};
  const std::string name = found->front().get<std::string>();
  if (!name.starts_with(prefix)) in.refuse("the architecture " + name);
  return name.substr(prefix.size());
}

/// The names in id2label, without those at the end that name nothing; none if it is no list of
/// different names.
std::vector<std::string> read_names(const Json& id2label, const ModelConfig& c) {
  std::vector<std::string> names;
  for (size_t i = 0; i < id2label.size(); ++i) {
    const auto found = id2label.find(std::to_string(i));
    if (found == id2label.end() || !found->is_string()) return {};
    names.push_back(found->get<std::string>());
  }
  const std::vector<std::string> unnamed = c.class_names();
  while (!names.empty() && names.back() == unnamed[names.size() - 1]) names.pop_back();
  if (std::set<std::string>(names.begin(), names.end()).size() != names.size()) return {};
  return names;
}

void read_labels(const ConfigReader& in, ModelConfig& c) {
  const auto names = in.json().find("id2label");
  const bool named = names != in.json().end() && names->is_object();
  const int64_t labels =
      named ? static_cast<int64_t>(names->size()) : in.get<int64_t>("num_labels", 2);
  const auto problem = in.find<std::string>("problem_type");
  if (problem && problem != "regression" && problem != "single_label_classification")
    in.refuse("problem_type=" + *problem);
  if (labels == 1 || problem == "regression") {
    if (labels != 1) in.refuse(fmt::format("regression of {} numbers", labels));
    if (problem == "single_label_classification") in.refuse("classification into one class");
    c.head = ModelHead::kRegression;
    return;
  }
  c.head = ModelHead::kClassification;
  c.num_labels = labels;
  if (named) c.label_names = read_names(*names, c);
}

ModelConfig read_encoder(const ConfigReader& in, std::string_view prefix) {
  ModelConfig c = ModelConfig::default_of(models::ModelType::kBert);
  c.num_layers = in.get<int64_t>("num_hidden_layers", 12);
  c.hidden_size = in.get<int64_t>("hidden_size", 768);
  c.num_attention_heads = in.get<int64_t>("num_attention_heads", 12);
  c.ffn_hidden_size = in.get<int64_t>("intermediate_size", 3072);
  c.vocab_size = in.get<int64_t>("vocab_size");
  c.max_position_embeddings = in.get<int64_t>("max_position_embeddings", 512);
  c.num_tokentypes = in.get<int64_t>("type_vocab_size", 2);
  if (c.num_tokentypes < 1) in.refuse(fmt::format("type_vocab_size={}", c.num_tokentypes));
  c.layernorm_epsilon = in.get<double>("layer_norm_eps", 1e-12);
  c.activation_func = read_activation(in, "hidden_act", "gelu", false);
  c.attention_dropout = in.get<double>("attention_probs_dropout_prob", 0.1);
  c.hidden_dropout = in.get<double>("hidden_dropout_prob", 0.1);
  c.classifier_dropout = in.find<double>("classifier_dropout");
  c.untie_embeddings_and_output_weights = !in.get<bool>("tie_word_embeddings", true);
  if (const auto kind = in.get<std::string>("position_embedding_type", "absolute");
      kind != "absolute")
    in.refuse("position_embedding_type=" + kind);
  for (const char* key : {"is_decoder", "add_cross_attention"})
    if (in.get<bool>(key, false)) in.refuse(fmt::format("{}=true", key));
  const std::string task = task_of(in, prefix);
  if (task == "Model") {
    c.head = ModelHead::kNone;
  } else if (task == "ForSequenceClassification") {
    read_labels(in, c);
  } else if (task == "ForMaskedLM") {
    c.binary_head = false;
  } else if (!task.empty() && (task != "ForPreTraining" || prefix != "Bert")) {
    std::string body(prefix); // what transformers calls it
    body.front() = static_cast<char>(body.front() - 'A' + 'a');
    in.refuse(
        fmt::format("the architecture {}{}", prefix, task),
        fmt::format("save its encoder alone, with model.{}.save_pretrained(DIR) of transformers",
                    body));
  }
  return c;
}

Json write_encoder(const ModelConfig& c) {
  Json json = {{"num_hidden_layers", c.num_layers},
               {"hidden_size", c.hidden_size},
               {"num_attention_heads", c.num_attention_heads},
               {"intermediate_size", c.ffn_size()},
               {"vocab_size", c.vocab_size},
               {"max_position_embeddings", c.max_position_embeddings},
               {"layer_norm_eps", c.layernorm_epsilon},
               {"hidden_act", activation_name(c.activation_func)},
               {"attention_probs_dropout_prob", c.attention_dropout},
               {"hidden_dropout_prob", c.hidden_dropout},
               {"classifier_dropout", c.classifier_dropout ? Json(*c.classifier_dropout) : Json()},
               {"initializer_range", c.init_method_std},
               {"tie_word_embeddings", !c.untie_embeddings_and_output_weights}};
  // transformers always adds the embedding of a type.
  if (c.num_tokentypes > 0) json["type_vocab_size"] = c.num_tokentypes;
  if (c.head == ModelHead::kClassification || c.head == ModelHead::kRegression) {
    const bool classes = c.head == ModelHead::kClassification;
    Json names = Json::object(), numbers = Json::object();
    for (const std::string& name :
         classes ? c.class_names() : std::vector<std::string>{"LABEL_0"}) {
      numbers[name] = names.size();
      names[std::to_string(names.size())] = name;
    }
    json["id2label"] = std::move(names);
    json["label2id"] = std::move(numbers);
    json["problem_type"] = classes ? "single_label_classification" : "regression";
  }
  return json;
}

std::string task_name(const ModelConfig& c) {
  switch (c.head) {
  case ModelHead::kMaskedLm:
    return c.binary_head ? "ForPreTraining" : "ForMaskedLM";
  case ModelHead::kNone:
    return "Model";
  default:
    return "ForSequenceClassification";
  }
}

void name_body(const ModelConfig& c, const std::string& prefix, TensorNames& out) {
  out.add(prefix + "embeddings.word_embeddings.weight", "embedding.word.weight");
  if (c.position_embedding_type == models::PositionEmbedding::kLearnedAbsolute)
    out.add(prefix + "embeddings.position_embeddings.weight", "embedding.position.weight");
  out.add(prefix + "embeddings.token_type_embeddings.weight", "embedding.token_type.weight");
  out.add_module(prefix + "embeddings.LayerNorm", "embedding.norm", true);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string hf = fmt::format("{}encoder.layer.{}.", prefix, i),
                      own = fmt::format("layers.{}.", i);
    for (const auto& [theirs, part] : {std::pair{"query", "q"}, {"key", "k"}, {"value", "v"}})
      out.add_module(hf + "attention.self." + theirs, own + "attention.qkv", true, part);
    out.add_module(hf + "attention.output.dense", own + "attention.proj", true);
    out.add_module(hf + "attention.output.LayerNorm", own + "attention_residual_norm", true);
    out.add_module(hf + "intermediate.dense", own + "mlp.fc1", true);
    out.add_module(hf + "output.dense", own + "mlp.fc2", true);
    out.add_module(hf + "output.LayerNorm", own + "mlp_residual_norm", true);
  }
}

/// Of the head of masked tokens. An output layer with weights of its own has its bias there too,
/// and transformers leaves the head's unused.
void name_vocabulary(const ModelConfig& c, const std::string& head, TensorNames& out) {
  const bool untied = c.untie_embeddings_and_output_weights;
  if (untied) out.add(head + ".decoder.weight", "output.weight");
  out.add(head + (untied ? ".decoder.bias" : ".bias"), "lm_head.bias");
}
bool is_extra_of_vocabulary(std::string_view name, const ModelConfig& c, std::string_view head) {
  if (!name.starts_with(head)) return false;
  const std::string_view rest = name.substr(head.size());
  return rest == (c.untie_embeddings_and_output_weights ? ".bias" : ".decoder.weight");
}

/// The bias of an output layer that is tied stands twice in files of transformers 4.
std::string original_of_vocabulary(std::string_view name, const ModelConfig& c,
                                   const std::string& head) {
  const bool copied = c.head == ModelHead::kMaskedLm && !c.untie_embeddings_and_output_weights &&
                      name == head + ".decoder.bias";
  return copied ? head + ".bias" : "";
}

/// A task whose head the files show, where config.json names none.
void find_task(const TensorLookup& has, const char* masked, const char* pair, ModelConfig& c) {
  if (c.head != ModelHead::kMaskedLm || !c.binary_head) return; // it was named
  c.binary_head = has(pair);
  if (!has(masked)) c.head = ModelHead::kNone;
}

ModelConfig read_bert(const ConfigReader& in) {
  return read_encoder(in, "Bert");
}

void fit_bert(const TensorLookup& has, ModelConfig& c) {
  find_task(has, "cls.predictions.bias", "cls.seq_relationship.weight", c);
  if (c.head == ModelHead::kNone)
    c.pooler = has("pooler.dense.weight") || has("bert.pooler.dense.weight");
}

void name_bert(const ModelConfig& c, TensorNames& out) {
  const std::string prefix = c.head == ModelHead::kNone ? "" : "bert.";
  name_body(c, prefix, out);
  if (c.pools()) out.add_module(prefix + "pooler.dense", "pooler", true);
  if (c.head == ModelHead::kMaskedLm) {
    const std::string head = "cls.predictions";
    if (!c.untie_embeddings_and_output_weights) name_vocabulary(c, head, out);
    out.add_module(head + ".transform.dense", "lm_head.dense", true);
    out.add_module(head + ".transform.LayerNorm", "lm_head.norm", true);
    if (c.untie_embeddings_and_output_weights) name_vocabulary(c, head, out);
    if (c.binary_head) out.add_module("cls.seq_relationship", "binary_head", true);
  } else if (c.head != ModelHead::kNone) {
    out.add_module("classifier", "classifier", true);
  }
}

bool is_extra_of_bert(std::string_view name, const ModelConfig& c) {
  if (is_extra_of_vocabulary(name, c, "cls.predictions")) return true;
  // A file for pre-training, of which another task needs less.
  if (name.starts_with("cls.seq_relationship."))
    return !(c.head == ModelHead::kMaskedLm && c.binary_head);
  if (name.starts_with("cls.predictions.")) return c.head != ModelHead::kMaskedLm;
  return name.find("pooler.dense.") != std::string_view::npos && !c.pools();
}

ModelConfig read_roberta(const ConfigReader& in) {
  ModelConfig c = read_encoder(in, "Roberta");
  const auto pad = in.get<int64_t>("pad_token_id", 1);
  if (pad < 0) in.refuse(fmt::format("pad_token_id={}", pad));
  c.position_offset = pad + 1;
  if (c.head == ModelHead::kMaskedLm && c.activation_func != models::ActivationFunction::kGelu)
    in.refuse(fmt::format("hidden_act={} before a head of masked tokens, which has gelu,",
                          in.get<std::string>("hidden_act")));
  return c;
}

Json write_roberta(const ModelConfig& c) {
  Json json = write_encoder(c);
  if (c.position_offset > 0) json["pad_token_id"] = c.position_offset - 1;
  return json;
}

void fit_roberta(const TensorLookup& has, ModelConfig& c) {
  find_task(has, "lm_head.bias", "", c);
  if (c.head == ModelHead::kNone)
    c.pooler = has("pooler.dense.weight") || has("roberta.pooler.dense.weight");
}

void name_roberta(const ModelConfig& c, TensorNames& out) {
  const std::string prefix = c.head == ModelHead::kNone ? "" : "roberta.";
  name_body(c, prefix, out);
  if (c.head == ModelHead::kMaskedLm) {
    if (!c.untie_embeddings_and_output_weights) name_vocabulary(c, "lm_head", out);
    out.add_module("lm_head.dense", "lm_head.dense", true);
    out.add_module("lm_head.layer_norm", "lm_head.norm", true);
    if (c.untie_embeddings_and_output_weights) name_vocabulary(c, "lm_head", out);
  } else if (c.head == ModelHead::kNone) {
    if (c.pooler) out.add_module("pooler.dense", "pooler", true);
  } else {
    out.add_module("classifier.dense", "pooler", true);
    out.add_module("classifier.out_proj", "classifier", true);
  }
}

bool is_extra_of_roberta(std::string_view name, const ModelConfig& c) {
  if (is_extra_of_vocabulary(name, c, "lm_head")) return true;
  if (name.starts_with("lm_head.")) return c.head != ModelHead::kMaskedLm;
  return name.find("pooler.dense.") != std::string_view::npos &&
         !(c.head == ModelHead::kNone && c.pooler);
}

/// As files of the first BERT name norms, and transformers 4 the bias of an output layer of its
/// own.
std::vector<std::pair<std::string_view, std::string_view>> older_endings() {
  return {{".LayerNorm.weight", ".LayerNorm.gamma"},
          {".LayerNorm.bias", ".LayerNorm.beta"},
          {".decoder.bias", ".bias"}};
}

} // namespace

Family bert_family() {
  return {.model_type = "bert",
          .type = models::ModelType::kBert,
          .architecture = [](const ModelConfig& c) { return "Bert" + task_name(c); },
          .read = read_bert,
          .write = write_encoder,
          .names = name_bert,
          .base_prefix = "bert.",
          .older_endings = older_endings(),
          .padding_token = 0,
          .fit = fit_bert,
          .is_extra = is_extra_of_bert,
          .original_of =
              [](std::string_view name, const ModelConfig& c) {
                return original_of_vocabulary(name, c, "cls.predictions");
              }};
}

Family roberta_family() {
  return {.model_type = "roberta",
          .type = models::ModelType::kBert,
          .architecture = [](const ModelConfig& c) { return "Roberta" + task_name(c); },
          .read = read_roberta,
          .write = write_roberta,
          .names = name_roberta,
          .base_prefix = "roberta.",
          .older_endings = older_endings(),
          .padding_token = 1,
          .fit = fit_roberta,
          .is_extra = is_extra_of_roberta,
          .original_of =
              [](std::string_view name, const ModelConfig& c) {
                return original_of_vocabulary(name, c, "lm_head");
              }};
}

} // namespace pentatron::checkpoint
