// How to make a context.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "llama.h"

namespace ipyllama {

struct ContextOptions {
    std::uint32_t n_ctx = 4096;
    std::uint32_t n_batch = 512; // tokens in one step
    std::uint32_t n_ubatch = 0;  // tokens in one micro-batch; 0, and always with a sliding window: as many as in a step
    std::uint32_t n_seq_max = 1;
    int n_threads = 1;
    int n_threads_batch = 0;  // for steps of several tokens; 0: n_threads
    int flash_attention = -1; // 1 on, 0 off, -1 llama.cpp decides
    bool swa_full = true;     // keep every cell of windowed layers, so that a trim stays exact
    bool offload_kqv = true;  // KV memory on the GPU, where there is one
    std::string type_k = "f16";
    std::string type_v = "f16";
    bool embeddings = false;
    std::string pooling = "unspecified"; // none, mean, cls, last, rank; unspecified: what the model says
    float rope_freq_base = 0.0F;         // 0: the model's
    float rope_freq_scale = 0.0F;        // 0: the model's
};

// The same for llama.cpp; `abort` is what its steps look at. Throws bad_argument for what it would not survive.
llama_context_params to_params(const ContextOptions &options, std::atomic<bool> &abort);

// llama.cpp's abort callback; `abort` points to a std::atomic<bool>.
bool on_abort_check(void *abort);

void check_threads(int n_threads);

} // namespace ipyllama
