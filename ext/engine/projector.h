// What llama.cpp loads from a projector file without a word and then dies of while it computes.
#pragma once

#include "gguf_header.h"

namespace ipyllama {

// Throws bad_model_file with the value that is wrong.
void check_projector(const GgufHeader &header);

} // namespace ipyllama
