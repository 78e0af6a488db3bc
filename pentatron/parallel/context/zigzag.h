/// Which tokens of a sample a context-parallel rank has.
///
/// A sample of n tokens is cut into 2c chunks, chunk j being places [floor(j n / 2c), floor((j + 1)
/// n / 2c)); rank r of c has chunks r and 2c - 1 - r, so that every rank has an equal share of the
/// pairs of causal attention (+- a token where 2c does not divide n). Samples stay in their order.
/// Source: Megatron-LM's get_batch_on_this_cp_rank.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"

namespace pentatron::parallel {

/// Of a sample with so many tokens.
nn::TokenRange zigzag_chunk(int64_t tokens, int64_t chunk, int ranks);
int64_t zigzag_tokens(int64_t tokens, int rank, int ranks);
/// A rank's chunks of all samples of an uncut layout, in order of its tokens.
std::vector<nn::SampleChunk> zigzag_chunks(const nn::SequenceLayout& whole, int rank, int ranks);

/// Tokens of the chunks together.
int64_t num_rows(const std::vector<nn::SampleChunk>& chunks);

/// A rank's part of a layout that is not cut yet; the layout itself on one rank. Throws ShapeError
/// if a sample has fewer tokens than there are chunks.
nn::SequenceLayout cut_samples(nn::SequenceLayout whole, int rank, int ranks);

/// Rows of the chunks, from a tensor [tokens of the whole samples, ...].
at::Tensor rows_of_chunks(const at::Tensor& whole_rows, const nn::SequenceLayout& whole,
                          const std::vector<nn::SampleChunk>& chunks);
/// What this rank has of a value per token; the argument if the layout is not cut.
at::Tensor own_tokens(const at::Tensor& per_token, const nn::SequenceLayout& layout);

} // namespace pentatron::parallel
