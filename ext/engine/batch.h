// Tokens of several sequences for one step.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "context.h"
#include "sequence.h"

namespace ipyllama {

class Batch {
  public:
    // Tokens to evaluate after what the sequence holds. `position` is that of the first: by default the next one, 0
    // in an empty sequence.
    void add(const Sequence &sequence, std::vector<llama_token> tokens, Outputs outputs,
             std::optional<llama_pos> position);
    void clear() { parts_.clear(); }
    std::size_t size() const; // tokens

    // The pieces of this batch, for a context whose mutex is held.
    std::vector<Piece> pieces(const ContextHandle &context) const;

  private:
    struct Part {
        std::weak_ptr<Slot> slot;
        std::vector<llama_token> tokens;
        Outputs outputs;
        std::optional<llama_pos> position;
    };
    std::vector<Part> parts_;
};

} // namespace ipyllama
