// Copying state out of a context and back into it. All of these want the context's mutex held.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "buffer.h"
#include "context.h"

namespace ipyllama {

// The sequence's state as llama.cpp writes it, `flags` being upstream's.
std::size_t state_size(ContextHandle &handle, llama_seq_id id, llama_state_seq_flags flags);
Buffer copy_out(ContextHandle &handle, llama_seq_id id, llama_state_seq_flags flags);

// Runs `use(id)` on a sequence that holds these positions and nothing else.
void with_range(ContextHandle &handle, llama_seq_id id, Positions range, const std::function<void(llama_seq_id)> &use);

// The cells of a checked state of one sequence, for a ledger of these tokens. Throws bad_state if they do not match.
struct Restored {
    std::vector<Cell> cells;
    llama_pos complete_from; // first position from which on every part of the memory has all cells
};
Restored match(ContextHandle &handle, const std::vector<StateCells> &parts, const std::vector<llama_token> &tokens);
// The same for a partial state, which goes to cells that are there. Returns from where on it is complete.
llama_pos match_partial(const ContextHandle &handle, const std::vector<StateCells> &parts,
                        const std::vector<Cell> &cells);

// Tokens of sequence `id` that a checked state is of; of recurrent state alone, if they began at position 0. `id`
// negative: of all cells.
std::size_t count_tokens(const std::vector<StateCells> &parts, llama_seq_id id);

} // namespace ipyllama
