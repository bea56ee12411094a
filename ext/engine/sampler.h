// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llama.h"

#include "owned.h"
#include "sampler_part.h"
#include "sequence.h"

namespace ipyllama {

// What samplers left to choose from, in their order.
struct Candidates {
    std::vector<llama_token> tokens;
    std::vector<float> logits;
    std::vector<float> probabilities;    // softmax of these logits
    std::optional<llama_token> selected; // by a sampler that chooses
};

// One sampler, or several that work one after another. Only the last may choose.
class Sampler {
  public:
    explicit Sampler(SamplerPart part);
    // Copies the parts, with their state.
    static std::shared_ptr<Sampler> chain(const std::vector<std::shared_ptr<Sampler>> &parts);

    // Chooses from the sequence's last logits and takes note of the choice.
    llama_token sample(const Sequence &sequence);
    // What is left of these logits. Draws random numbers as sample() does, but takes no note of a choice.
    Candidates apply(const std::vector<float> &logits);
    // Takes note of tokens that follow. Those before one that does not fit a grammar stay accepted.
    void accept(const std::vector<llama_token> &tokens);
    void reset();
    std::shared_ptr<Sampler> clone() const;

    void close() { owned_.close(); }
    bool closed() const { return owned_.closed(); }

    std::string name() const;
    std::vector<std::string> names() const;
    std::optional<std::uint32_t> seed() const; // of the last part that draws

  private:
    struct Handle {
        std::mutex mutex;
        std::vector<SamplerPart> parts;
        bool is_chain = false;
        std::vector<llama_token_data> candidates;
    };
    explicit Sampler(std::shared_ptr<Handle> handle);

    static llama_token_data_array apply_locked(Handle &handle, const float *logits, std::size_t n);
    static void accept_locked(Handle &handle, llama_token token);

    Owned<Handle> owned_;
};

// The k most probable tokens of a sequence's last logits, ties by id, with the natural logarithms of their
// probabilities over the whole vocabulary.
std::pair<std::vector<llama_token>, std::vector<float>> top_logprobs(const Sequence &sequence, int k);

} // namespace ipyllama
