// KV memory and compute buffers for one model.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "llama.h"

#include "model.h"
#include "owned.h"

namespace ipyllama {

struct ContextOptions {
    std::uint32_t n_ctx = 4096;
    std::uint32_t n_batch = 512; // tokens in one step; the micro-batch has the same size
    std::uint32_t n_seq_max = 1;
    int n_threads = 1;
    int flash_attention = -1; // 1 on, 0 off, -1 llama.cpp decides
    bool swa_full = true;     // keep every cell of windowed layers, so that a trim stays exact
    std::string type_k = "f16";
    std::string type_v = "f16";
};

struct AdapterHandle;

struct ContextHandle {
    ContextHandle(std::shared_ptr<ModelHandle> model_, const ContextOptions &options);
    ~ContextHandle() { llama_free(context); }
    ContextHandle(const ContextHandle &) = delete;
    ContextHandle &operator=(const ContextHandle &) = delete;

    llama_memory_t memory() const;
    // Evaluates `tokens` at positions [p0, p0 + n) of `sequence`; logits of the last. Returns llama_decode's status.
    int decode(llama_seq_id sequence, llama_pos p0, const std::vector<llama_token> &tokens);

    std::shared_ptr<ModelHandle> model;
    std::atomic<bool> abort{false};
    std::mutex mutex; // one native call at a time
    llama_context *context;
    // Which sequence the logits in the context's output buffer belong to, -1 for none.
    llama_seq_id logits_of = -1;
    std::vector<bool> sequence_taken;
    // The LoRA adapters in use and their scales, in the order of set_adapters(): alive as long as `context`.
    std::vector<std::pair<std::shared_ptr<AdapterHandle>, float>> adapters;
};

class Context {
  public:
    Context(const Model &model, const ContextOptions &options);

    std::shared_ptr<ContextHandle> handle() const { return owned_.get(); }
    // Stops a running step first; memory is freed as soon as no call uses it.
    void close();
    bool closed() const { return owned_.closed(); }

    // Ends a running step early and refuses new ones until clear_abort().
    void abort() { owned_.get()->abort = true; }
    void clear_abort() { owned_.get()->abort = false; }

    std::uint32_t n_ctx() const;
    std::uint32_t n_batch() const;
    std::uint32_t n_seq_max() const;
    int n_threads() const;

  private:
    Owned<ContextHandle> owned_;
};

} // namespace ipyllama
