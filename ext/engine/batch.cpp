#include "batch.h"

#include <numeric>

namespace ipyllama {

void Batch::add(const Sequence &sequence, std::vector<llama_token> tokens, Outputs outputs,
                std::optional<llama_pos> position) {
    require(!tokens.empty(), "there are no tokens to evaluate");
    const auto slot = sequence.slot();
    for (const Part &part : parts_) {
        require(part.slot.lock() != slot, "the sequence is in this batch already: give all its tokens at once");
    }
    parts_.push_back({slot, std::move(tokens), outputs, position});
}

std::size_t Batch::size() const {
    return std::accumulate(parts_.begin(), parts_.end(), std::size_t{0},
                           [](std::size_t n, const Part &part) { return n + part.tokens.size(); });
}

std::vector<Piece> Batch::pieces(const ContextHandle &context) const {
    std::vector<Piece> pieces;
    for (const Part &part : parts_) {
        const auto slot = part.slot.lock();
        if (!slot) {
            throw Error(ErrorKind::closed, "a sequence of this batch is closed");
        }
        require(slot->context->handle().get() == &context, "a sequence of this batch belongs to another context");
        pieces.push_back(next_piece(context, slot->id, part.tokens, part.outputs, part.position));
    }
    return pieces;
}

} // namespace ipyllama
