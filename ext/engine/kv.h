// What is in a context's memory, kept beside llama.cpp's own account of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llama.h"

namespace ipyllama {

// One evaluated token. Sequences that share a cell of KV memory have cells with the same id.
struct Cell {
    llama_token token;
    llama_pos pos;
    std::uint64_t id;
    llama_pos length = 1; // positions up to the next token: more than one at the end of an image with M-RoPE
};

// Where cells are, in their order.
std::vector<llama_pos> positions_of(const std::vector<Cell> &cells);

// Half-open range of positions [begin, end).
struct Positions {
    llama_pos begin = 0;
    llama_pos end = INT32_MAX;

    bool holds(llama_pos pos) const { return begin <= pos && pos < end; }
    llama_pos upstream_end() const { return end == INT32_MAX ? -1 : end; } // as llama.h has it: -1 is without end
};

// Every change is checked before llama.cpp sees it, then against its answer, then against the positions that it
// reports: windowed memory answers "done" and has lost cells, recurrent memory keeps what it says is removed. What is
// refused leaves everything as it was. Not locked: the context's mutex guards it.
class Kv {
  public:
    Kv(const llama_context *context, const llama_model *model, std::size_t n_sequences);

    const std::vector<Cell> &cells(llama_seq_id id) const { return sequences_[static_cast<std::size_t>(id)]; }
    std::size_t n_used() const;  // cells that hold something
    std::size_t n_total() const; // cells there are
    bool can_shift() const;
    // Recurrent state sums up all that was read, so it has no positions to cut at.
    bool recurrent() const { return recurrent_; }
    llama_memory_t memory() const; // throws where the model has none
    llama_pos pos_min(llama_seq_id id) const;
    llama_pos pos_max(llama_seq_id id) const;
    llama_pos next(llama_seq_id id) const; // where the sequence goes on
    // From which position on no cell of the sequence is missing, and from which on a copy of it has all.
    llama_pos complete_from(llama_seq_id id) const;
    llama_pos saved_from(llama_seq_id id) const;
    // True unless a sliding window has let cells go.
    bool resident(llama_seq_id id) const;
    // The first of these positions, ordered, that a token after them can see in every layer.
    llama_pos seen_from(const std::vector<llama_pos> &positions) const;

    // Throws cannot_trim.
    void remove(llama_seq_id id, Positions range);
    // Shares cells of `source` with `id`. Throws cannot_trim where only a whole sequence can be shared.
    void share(llama_seq_id source, llama_seq_id id, Positions range);
    // Throw cannot_shift.
    void add(llama_seq_id id, Positions range, llama_pos delta);
    void divide(llama_seq_id id, Positions range, int divisor);
    void clear(llama_seq_id id);
    void keep(llama_seq_id id);
    void clear_all(bool data);

    // After a step: what it evaluated, and what became of it where it failed.
    void append(llama_seq_id id, const std::vector<llama_token> &tokens, const std::vector<llama_pos> &positions);
    void reconcile(llama_seq_id id, const std::vector<llama_token> &tokens, const std::vector<llama_pos> &positions);
    // The sequence goes on at `next`, beyond its last position.
    void reach(llama_seq_id id, llama_pos next);
    // After a restore: cells ordered by position. A windowed part of the memory has all of them from `complete_from`.
    void assign(llama_seq_id id, std::vector<Cell> cells, llama_pos complete_from);
    // For copies of ranges: `range` of `source` in the empty sequence `id`, and all of `source` after what `id` holds.
    void lend(llama_seq_id source, llama_seq_id id, Positions range);
    void join(llama_seq_id source, llama_seq_id id);
    // Runs `use` while llama.cpp has all of sequence `id` but the cells at its last position; `spare` is empty.
    void without_last(llama_seq_id id, llama_seq_id spare, const std::function<void()> &use);
    std::uint64_t next_cell() { return next_cell_++; }
    // Throws cannot_trim unless the memory still has every cell of `range` that the tokens after it can see.
    void check_exportable(llama_seq_id id, Positions range) const;
    // Cells that would be free if sequence `id` was empty.
    std::size_t n_free_without(llama_seq_id id) const;
    // True if llama.cpp's positions are those of the ledger, and everything is there that the next token can see.
    bool agrees(llama_seq_id id) const;

    // Moved keys are turned at the start of the next step; until then they cannot be copied out.
    bool shift_pending = false;

  private:
    std::vector<Cell> &at(llama_seq_id id) { return sequences_[static_cast<std::size_t>(id)]; }
    std::vector<Cell> in_range(llama_seq_id id, Positions range) const;
    // The cells that are in memory: recurrent state alone is one, shared as long as nothing was read after a fork.
    std::vector<Cell> held(llama_seq_id id) const;
    llama_pos unseen(llama_pos next) const; // the last position that a token at `next` does not see in every layer
    bool whole(llama_seq_id id, Positions range) const;
    void check_shift(llama_seq_id id, Positions range) const;
    void move_positions(llama_seq_id id, Positions range, const char *what, llama_pos (*move)(llama_pos, int), int by);

    llama_memory_t memory_;
    std::size_t n_ctx_;
    llama_pos window_;
    bool chunked_; // the window is the chunk of `window_` positions that a token lies in
    bool recurrent_;
    bool attention_;
    std::vector<std::vector<Cell>> sequences_; // by sequence number, ordered by position
    // By sequence number: restored windowed memory may have holes below this position, and llama.cpp's pos_min does
    // not tell of those between two blocks.
    std::vector<llama_pos> hole_end_;
    std::uint64_t next_cell_ = 0;
};

} // namespace ipyllama
