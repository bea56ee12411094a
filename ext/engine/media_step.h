// Reading an image or a sound into a sequence.
#pragma once

#include <cstddef>

#include "multimodal.h"
#include "sequence.h"

namespace ipyllama {

// Embeddings of a chunk, as Multimodal::encode gives them.
struct Rows {
    const float *data;
    std::size_t n_rows;
    std::size_t n_embd;
};

// Evaluates the chunk after what the sequence holds, in steps of n_batch. Its positions are in the ledger as
// LLAMA_TOKEN_NULL. All of it or nothing: where a step fails or is aborted the sequence is as it was, or empty on
// architectures that cannot go back.
void evaluate(const Multimodal &projector, const Sequence &sequence, const Chunk &chunk, const Rows &rows);

} // namespace ipyllama
