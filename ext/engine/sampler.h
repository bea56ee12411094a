// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "llama.h"

#include "sequence.h"

namespace ipyllama {

struct SamplerOptions {
    float temperature = 0.8F; // 0: always the most probable token
    int top_k = 40;           // 0: off
    float top_p = 0.95F;      // 1: off
    float min_p = 0.05F;      // 0: off
    float repeat_penalty = 1.0F;
    int repeat_last_n = 64;
    std::uint32_t seed = 0;
};

class Sampler {
  public:
    Sampler(const Model &model, const SamplerOptions &options);

    // Chooses from the sequence's last logits and takes note of the choice.
    llama_token sample(const Sequence &sequence);
    // Takes note of tokens that are in the ledger already, for the penalties.
    void accept(const std::vector<llama_token> &tokens);
    void reset();

    void close();
    bool closed() const;

  private:
    struct Handle {
        std::shared_ptr<ModelHandle> model;
        std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)> chain;
        std::mutex mutex;
        std::vector<llama_token_data> candidates;
    };
    Owned<Handle> owned_;

    static std::shared_ptr<Handle> make(const Model &model, const SamplerOptions &options);
};

} // namespace ipyllama
