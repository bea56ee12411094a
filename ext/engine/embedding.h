// Embeddings of whole texts, many in one step.
#pragma once

#include <vector>

#include "context.h"

namespace ipyllama {

struct Embeddings {
    std::size_t width; // values in a row
    bool pooled;       // one row for each input; otherwise one for each of its tokens
    std::vector<std::vector<float>> inputs;
};

// One step. Inputs take sequence numbers that no Sequence has, and leave nothing in memory. Throws aborted if the
// abort flag is set.
Embeddings embed(const Context &context, const std::vector<std::vector<llama_token>> &inputs);

} // namespace ipyllama
