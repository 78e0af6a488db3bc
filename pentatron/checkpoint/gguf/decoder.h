/// Decoders that are made of Llama's blocks, between files and Hugging Face; the families' tables
/// say what is different in each.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pentatron/checkpoint/gguf/gguf_config.h"
#include "pentatron/checkpoint/gguf/key_reader.h"
#include "pentatron/checkpoint/gguf/key_writer.h"
#include "pentatron/checkpoint/gguf/tensor_list.h"

namespace pentatron::checkpoint {

std::vector<GgufMapEntry> decoder_map(const GgufStructure& s);
/// The tensors of a layer's experts; `mlp` is where Hugging Face's names begin.
void add_gguf_experts(const GgufStructure& s, const std::string& gguf, const std::string& mlp,
                      GgufTensorList& list);
void read_decoder(GgufKeyReader& in, GgufConfig& out);
void write_decoder(GgufKeyWriter& w);
/// What transformers 5 has under rope_parameters and 4 beside each other.
Json rope_of(const GgufKeyWriter& w);
/// original_max_position_embeddings: of config.json itself, else of its rotary parameters, else
/// `positions`.
int64_t original_positions(const GgufKeyWriter& w, int64_t positions);

/// The file's window, if it has one; a value of 0 means no window.
std::optional<int64_t> read_window(GgufKeyReader& in);
/// Adds a problem if the file has a window but does not specify which layers use it.
void refuse_window(GgufKeyReader& in);
/// Writes a window for an architecture where llama.cpp ignores it, with a warning.
void write_ignored_window(GgufKeyWriter& w, int64_t window);
/// Adds a problem if a value is not the one that llama.cpp implies for the architecture.
void require_number(const GgufKeyWriter& w, const char* key, double given, double implied);

} // namespace pentatron::checkpoint
