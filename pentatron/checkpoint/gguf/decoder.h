/// Decoders that are made of Llama's blocks, between files and Hugging Face; the families' tables
/// say what is different in each.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pentatron/checkpoint/gguf/gguf_config.h"
#include "pentatron/checkpoint/gguf/key_reader.h"
#include "pentatron/checkpoint/gguf/key_writer.h"

namespace pentatron::checkpoint {

std::vector<GgufMapEntry> decoder_map(const GgufStructure& s);
void read_decoder(GgufKeyReader& in, GgufConfig& out);
void write_decoder(GgufKeyWriter& w);

/// The window, if the file has one; 0 stands for none.
std::optional<int64_t> read_window(GgufKeyReader& in);
/// A window that some layers have and the file does not name them.
void refuse_window(GgufKeyReader& in);
/// Where llama.cpp computes full attention, whatever the file says.
void write_ignored_window(GgufKeyWriter& w, int64_t window);
/// A number that llama.cpp takes from somewhere else.
void require_number(const GgufKeyWriter& w, const char* key, double given, double implied);

} // namespace pentatron::checkpoint
