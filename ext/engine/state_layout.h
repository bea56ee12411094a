// What a state of this model and context looks like, byte for byte.
//
// llama.cpp's state has no version, no checksum and no name of its model, and some damaged ones end the process. So
// the layout is learnt once from a state that llama.cpp has just written itself, and everything that comes from
// outside has to match it before llama.cpp sees it: parts, layers, types, row sizes, cell counts, sequences, length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llama.h"

#include "buffer.h"

namespace ipyllama {

// The cells in one part of a state: attention layers, windowed layers, or recurrent layers.
struct StateCells {
    struct Entry {
        llama_pos pos;
        std::vector<llama_seq_id> ids; // in the state of a whole context
    };
    bool recurrent;
    std::vector<Entry> entries; // in the order of the state
};

class StateLayout {
  public:
    // From the state of one sequence that is not empty, written without and with PARTIAL_ONLY. Throws bad_state where
    // the memory is of a kind not known here.
    static StateLayout learn(Bytes state, Bytes partial);

    // Throw bad_state with what differs. `partial`: only what upstream's PARTIAL_ONLY flag writes.
    std::vector<StateCells> check_sequence(Bytes state, bool partial) const;
    std::vector<StateCells> check_context(Bytes state, const std::string &architecture, std::size_t n_sequences) const;
    // No state of as many cells and sequences has more.
    std::size_t most_bytes(std::size_t n_cells, std::size_t n_sequences) const;
    // Why upstream's ON_DEVICE flag does not work here, "" if it does. Each run of cells becomes a tensor of its own in
    // a buffer that is not made larger when there are more runs the next time, and blocks of quantised types are
    // counted as single values.
    std::string no_device_copy(std::size_t alignment) const;
    // True if PARTIAL_ONLY writes less than everything.
    bool has_partial() const { return first_partial_ > 0; }

    struct Rows { // one layer's K, V, or recurrent state
        std::int32_t type = -1;
        std::uint64_t bytes = 0; // per cell; of a transposed V per element
        std::uint32_t width = 1; // elements of a transposed V
    };
    struct Part {
        bool recurrent = false;
        bool has_extra = false;       // 2D positions or token ids beside each position
        std::uint32_t transposed = 0; // V is stored element by element
        std::uint32_t n_layer = 0;
        std::vector<Rows> first;  // K, or the recurrent model's R
        std::vector<Rows> second; // V, or S
    };

  private:
    std::vector<Part> parts_;
    std::size_t first_partial_ = 0; // 0: PARTIAL_ONLY changes nothing
};

} // namespace ipyllama
