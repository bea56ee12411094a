#include "state_layout.h"

#include <cstring>
#include <optional>

#include "error.h"

namespace ipyllama {
namespace {

using Part = StateLayout::Part;
using Rows = StateLayout::Rows;

constexpr std::uint32_t sequence_magic = 0xaf143cd8;
constexpr std::size_t extra_bytes = 12;
constexpr std::size_t header_bytes = 256; // more than stands before the cells of any state, or of a part of it
constexpr std::uint32_t most_layers = 4096;
constexpr llama_pos max_position = 1 << 30;

[[noreturn]] void bad(const std::string &what) {
    throw Error(ErrorKind::bad_state, "this state does not fit: " + what);
}

void expect(bool ok, const std::string &what) {
    if (!ok) {
        bad(what);
    }
}

template <typename T> void same(const std::string &what, T found, T wanted) {
    if (found != wanted) {
        bad(what + " " + std::to_string(found) + " where this context has " + std::to_string(wanted));
    }
}

class Cursor {
  public:
    explicit Cursor(Bytes bytes) : at_(bytes.data), left_(bytes.size) {}

    template <typename T> T read() {
        T value;
        std::memcpy(&value, take(sizeof(T)), sizeof(T));
        return value;
    }
    // `count` times `bytes`, without overflow.
    const std::uint8_t *take(std::uint64_t bytes, std::uint64_t count = 1) {
        expect(bytes == 0 || count <= left_ / bytes, "it ends early");
        const auto *from = at_;
        at_ += bytes * count;
        left_ -= bytes * count;
        return from;
    }
    std::size_t left() const { return left_; }

  private:
    const std::uint8_t *at_;
    std::size_t left_;
};

// How the meta data of cells is read.
struct Reading {
    bool whole_context = false;
    std::size_t n_sequences = 1;
};

StateCells::Entry read_cell(Cursor &cursor, const Part &part, const Reading &reading) {
    StateCells::Entry cell;
    cell.pos = cursor.read<llama_pos>();
    expect(cell.pos >= 0 && cell.pos < max_position, "a position is out of range");
    const auto n_ids = cursor.read<std::uint32_t>();
    if (part.has_extra) {
        cursor.take(extra_bytes);
    }
    if (!reading.whole_context) {
        same("sequences of a cell:", n_ids, part.recurrent ? 0U : 1U);
    }
    expect(n_ids <= std::max<std::size_t>(reading.n_sequences, 1), "a cell belongs to too many sequences");
    for (std::uint32_t i = 0; i < n_ids; ++i) {
        const auto id = cursor.read<llama_seq_id>();
        if (reading.whole_context) {
            expect(id >= 0 && static_cast<std::size_t>(id) < reading.n_sequences,
                   "it holds sequence " + std::to_string(id) + " and this context has " +
                       std::to_string(reading.n_sequences));
            expect(cell.ids.empty() || cell.ids.back() < id, "a cell names its sequences in no order");
            cell.ids.push_back(id);
        }
    }
    expect(!reading.whole_context || n_ids > 0, "a cell belongs to no sequence");
    return cell;
}

StateCells read_cells(Cursor &cursor, const Part &part, const Reading &reading) {
    if (!part.recurrent) {
        const auto n_streams = cursor.read<std::uint32_t>();
        expect(n_streams == 1, std::to_string(n_streams) + " KV streams where this context has 1 (a tool of llama.cpp "
                                                           "writes one if it is started with --kv-unified)");
    }
    const auto count = cursor.read<std::uint32_t>();
    expect(count <= cursor.left() / (2 * sizeof(std::uint32_t)), "it ends early");
    expect(!part.recurrent || reading.whole_context || count <= 1, "one sequence has several recurrent states");
    StateCells cells{part.recurrent, {}};
    cells.entries.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
        cells.entries.push_back(read_cell(cursor, part, reading));
    }
    return cells;
}

std::string kind_of(const Part &part, bool first) {
    if (part.recurrent) {
        return first ? "recurrent R" : "recurrent S";
    }
    return first ? "K" : "V";
}

void check_rows(const Rows &found, const Rows &known, const std::string &name) {
    same("type of " + name, found.type, known.type);
    same("bytes per cell of " + name, found.bytes, known.bytes);
    same("elements per cell of " + name, found.width, known.width);
}

// Type, row size and data of one layer.
Rows read_rows(Cursor &cursor, bool transposed, std::uint64_t n_cells) {
    Rows rows;
    rows.type = cursor.read<std::int32_t>();
    rows.bytes = transposed ? cursor.read<std::uint32_t>() : cursor.read<std::uint64_t>();
    if (transposed) {
        rows.width = cursor.read<std::uint32_t>();
    }
    expect(rows.bytes < UINT64_C(1) << 40, "a row is too long");
    cursor.take(rows.bytes * rows.width, n_cells);
    return rows;
}

// Everything after the cells. `known` is what it has to be; while it is being learnt, what is known so far.
void read_layers(Cursor &cursor, const Part &known, std::uint64_t n_cells) {
    same(known.recurrent ? "recurrent transposition" : "V transposition", cursor.read<std::uint32_t>(),
         known.transposed);
    same("layers:", cursor.read<std::uint32_t>(), known.n_layer);
    for (const bool first : {true, false}) {
        const auto &rows = first ? known.first : known.second;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const bool transposed = !first && !known.recurrent && known.transposed != 0;
            check_rows(read_rows(cursor, transposed, n_cells), rows[i],
                       kind_of(known, first) + " in layer " + std::to_string(i));
        }
    }
}

StateCells read_part(Cursor &cursor, const Part &part, const Reading &reading) {
    auto cells = read_cells(cursor, part, reading);
    // A part without cells: attention stops here, recurrent layers name their types all the same.
    if (part.recurrent || !cells.entries.empty()) {
        read_layers(cursor, part, cells.entries.size());
    }
    return cells;
}

bool plausible(const Rows &rows) {
    if (rows.type < 0 || rows.type >= GGML_TYPE_COUNT) {
        return false;
    }
    const auto size = ggml_type_size(static_cast<ggml_type>(rows.type));
    return size > 0 && rows.bytes % size == 0;
}

// The rows of `n` layers, if that is what stands there.
std::optional<std::vector<Rows>> learn_rows(Cursor &cursor, std::size_t n, bool transposed, std::uint64_t n_cells) {
    std::vector<Rows> rows;
    for (std::size_t i = 0; i < n; ++i) {
        rows.push_back(read_rows(cursor, transposed, n_cells));
        if (!plausible(rows.back())) {
            return std::nullopt;
        }
    }
    return rows;
}

// Which kinds of memory may follow each other, and from which on PARTIAL_ONLY writes.
struct Shape {
    std::vector<bool> recurrent;
    std::size_t first_partial;
};
const Shape shapes[] = {{{false}, 0}, {{true}, 0}, {{false, false}, 1}, {{false, true}, 1}, {{false, false, true}, 1}};

std::optional<std::vector<Part>> learn_parts(Cursor cursor, const std::vector<bool> &recurrent, std::size_t index);

// One part with `n_first` and `n_second` layers, and all parts after it.
std::optional<std::vector<Part>> learn_part(Cursor cursor, Part part, std::size_t n_cells,
                                            std::pair<std::size_t, std::size_t> n, const std::vector<bool> &recurrent,
                                            std::size_t index) {
    try {
        const bool transposed = !part.recurrent && part.transposed != 0;
        auto first = learn_rows(cursor, n.first, false, n_cells);
        auto second = first ? learn_rows(cursor, n.second, transposed, n_cells) : std::nullopt;
        if (!second) {
            return std::nullopt;
        }
        part.first = std::move(*first);
        part.second = std::move(*second);
        auto rest = learn_parts(cursor, recurrent, index + 1);
        if (rest) {
            rest->insert(rest->begin(), std::move(part));
        }
        return rest;
    } catch (const Error &) { // ends early: not this shape
        return std::nullopt;
    }
}

std::optional<std::vector<Part>> learn_parts(Cursor cursor, const std::vector<bool> &recurrent, std::size_t index) {
    if (index == recurrent.size()) {
        return cursor.left() == 0 ? std::make_optional(std::vector<Part>{}) : std::nullopt;
    }
    for (const bool has_extra : {false, true}) {
        Part part;
        part.recurrent = recurrent[index];
        part.has_extra = has_extra && !part.recurrent;
        Cursor at = cursor;
        try {
            const auto cells = read_cells(at, part, {});
            part.transposed = at.read<std::uint32_t>();
            part.n_layer = at.read<std::uint32_t>();
            if (cells.entries.empty() || part.transposed > 1 || part.n_layer > most_layers) {
                continue;
            }
            // Attention has K in every layer, V in most or (MLA) none; hybrids keep recurrent state in some layers.
            for (std::size_t n_first = part.n_layer; n_first > 0; --n_first) {
                for (std::size_t n_second : {n_first, std::size_t{0}}) {
                    auto parts = learn_part(at, part, cells.entries.size(), {n_first, n_second}, recurrent, index);
                    if (parts) {
                        return parts;
                    }
                }
                if (!part.recurrent) {
                    break;
                }
            }
        } catch (const Error &) { // not this shape
        }
    }
    return std::nullopt;
}

Cursor after_sequence_header(Bytes state) {
    Cursor cursor(state);
    expect(cursor.read<std::uint32_t>() == sequence_magic, "it is not the state of a sequence");
    cursor.read<llama_seq_id>(); // where it was; ignored
    return cursor;
}

} // namespace

StateLayout StateLayout::learn(Bytes state, Bytes partial) {
    const Cursor cursor = after_sequence_header(state);
    for (const Shape &shape : shapes) {
        if (auto parts = learn_parts(cursor, shape.recurrent, 0)) {
            StateLayout layout;
            layout.parts_ = std::move(*parts);
            layout.first_partial_ = partial.size < state.size ? shape.first_partial : 0;
            layout.check_sequence(partial, true);
            return layout;
        }
    }
    throw Error(ErrorKind::bad_state, "the memory of this architecture is of a kind that ipyllama does not know: its "
                                      "states cannot be checked and are not restored");
}

std::vector<StateCells> StateLayout::check_sequence(Bytes state, bool partial) const {
    Cursor cursor = after_sequence_header(state);
    std::vector<StateCells> cells;
    for (std::size_t i = partial ? first_partial_ : 0; i < parts_.size(); ++i) {
        cells.push_back(read_part(cursor, parts_[i], {}));
        expect(!cells.back().entries.empty(), "a part of it is empty");
    }
    expect(cursor.left() == 0, std::to_string(cursor.left()) + " bytes too many");
    return cells;
}

std::vector<StateCells> StateLayout::check_context(Bytes state, const std::string &architecture,
                                                   std::size_t n_sequences) const {
    Cursor cursor(state);
    const auto length = cursor.read<std::uint32_t>();
    const std::string name(reinterpret_cast<const char *>(cursor.take(length)), length);
    if (name != architecture) {
        const bool readable =
            length <= 64 && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_.") == std::string::npos;
        bad("it belongs to " + (readable && length > 0 ? "'" + name + "'" : std::string("no architecture")) +
            " and this model is '" + architecture + "'");
    }
    std::vector<StateCells> cells;
    for (const Part &part : parts_) {
        cells.push_back(read_part(cursor, part, {true, n_sequences}));
    }
    expect(cursor.left() == 0, std::to_string(cursor.left()) + " bytes too many");
    return cells;
}

std::string StateLayout::no_device_copy(std::size_t alignment) const {
    for (const Part &part : parts_) {
        if (part.transposed != 0 && !part.recurrent) {
            return "V is kept element by element without flash-attention";
        }
        for (const auto *layers : {&part.first, &part.second}) {
            for (const Rows &rows : *layers) {
                if (ggml_blck_size(static_cast<ggml_type>(rows.type)) > 1) {
                    return "its KV memory is quantised";
                }
                if (!part.recurrent && rows.bytes % alignment != 0) {
                    return "its rows of " + std::to_string(rows.bytes) + " bytes are not aligned to " +
                           std::to_string(alignment);
                }
            }
        }
    }
    return "";
}

std::size_t StateLayout::most_bytes(std::size_t n_cells, std::size_t n_sequences) const {
    std::size_t bytes = header_bytes;
    for (const Part &part : parts_) {
        std::size_t per_cell = 2 * sizeof(std::uint32_t) + extra_bytes + n_sequences * sizeof(llama_seq_id);
        for (const auto *layers : {&part.first, &part.second}) {
            for (const Rows &rows : *layers) {
                per_cell += rows.bytes * rows.width;
                bytes += sizeof(std::int32_t) + sizeof(std::uint64_t);
            }
        }
        bytes += header_bytes + per_cell * (part.recurrent ? n_sequences : n_cells);
    }
    return bytes;
}

} // namespace ipyllama
