// What users ask of a memory: checked, done, and compared with what llama.cpp says.
#include <algorithm>
#include <unordered_set>

#include "error.h"
#include "kv.h"

namespace ipyllama {
namespace {

constexpr llama_pos max_position = 1 << 30;

bool by_position(const Cell &a, const Cell &b) {
    return a.pos < b.pos;
}

[[noreturn]] void cannot_trim(const std::string &why) {
    throw Error(ErrorKind::cannot_trim, why);
}
[[noreturn]] void cannot_shift(const std::string &why) {
    throw Error(ErrorKind::cannot_shift, why);
}

} // namespace

void Kv::remove(llama_seq_id id, Positions range) {
    auto &cells = at(id);
    const auto goes = [&](const Cell &cell) { return range.holds(cell.pos); };
    if (std::none_of(cells.begin(), cells.end(), goes)) {
        return;
    }
    if (whole(id, range)) {
        clear(id);
        return;
    }
    if (recurrent_) {
        cannot_trim("recurrent state cannot forget a part of what it read: clear the sequence, or go back to a copy");
    }
    if (!resident(id)) {
        const bool tail = cells.back().pos < range.end;
        const auto kept = positions_of(in_range(id, {0, range.begin}));
        if (!tail || complete_from(id) > seen_from(kept)) {
            cannot_trim("the sliding window of " + std::to_string(window_) +
                        " tokens has let go of cells that would be needed: go back to a copy");
        }
    }
    const bool removed = llama_memory_seq_rm(memory(), id, range.begin, range.upstream_end());
    if (!removed) {
        cannot_trim("this architecture cannot remove a part of a sequence");
    }
    cells.erase(std::remove_if(cells.begin(), cells.end(), goes), cells.end());
    if (!agrees(id)) {
        clear(id);
        cannot_trim("llama.cpp removed more than it was asked to; the sequence was cleared");
    }
}

void Kv::share(llama_seq_id source, llama_seq_id id, Positions range) {
    require(source != id, "a sequence cannot be copied onto itself");
    auto &to = at(id);
    const std::vector<Cell> shared = in_range(source, range);
    if (shared.empty()) {
        return;
    }
    const bool entire = whole(source, range) && to.empty();
    if (recurrent_ && !entire) {
        cannot_trim("recurrent state can only be shared as a whole, with an empty sequence");
    }
    if (!entire && !resident(source) && shared.front().pos < complete_from(source)) {
        cannot_trim("the sliding window has let go of cells in that range");
    }
    for (const Cell &cell : shared) {
        const auto found = std::lower_bound(to.begin(), to.end(), cell, by_position);
        require(found == to.end() || found->pos != cell.pos,
                "position " + std::to_string(cell.pos) + " is taken in the target sequence: remove it first");
    }
    auto &hole_end = hole_end_[static_cast<std::size_t>(id)];
    if (entire) {
        hole_end = hole_end_[static_cast<std::size_t>(source)];
    } else if (!resident(id)) { // once there are cells before it, pos_min no longer tells of the hole
        hole_end = complete_from(id);
    }
    llama_memory_seq_cp(memory(), source, id, range.begin, range.upstream_end());
    to.insert(to.end(), shared.begin(), shared.end());
    std::stable_sort(to.begin(), to.end(), by_position);
    if (!agrees(id)) {
        clear(id);
        throw Error(ErrorKind::bad_state, "llama.cpp did not copy what it was asked to; the target was cleared");
    }
}

void Kv::check_shift(llama_seq_id id, Positions range) const {
    if (!can_shift()) {
        cannot_shift("positions cannot be moved on this architecture, or with this sliding window");
    }
    if (recurrent_ && !whole(id, range)) {
        cannot_shift("recurrent state has one position: only a whole sequence can be moved");
    }
    if (!resident(id)) {
        cannot_shift("the sliding window has let go of cells of this sequence");
    }
    std::unordered_set<std::uint64_t> moved;
    for (const Cell &cell : held(id)) {
        if (range.holds(cell.pos)) {
            moved.insert(cell.id);
        }
    }
    for (std::size_t other = 0; other < sequences_.size(); ++other) {
        const auto theirs = held(static_cast<llama_seq_id>(other));
        if (other != static_cast<std::size_t>(id) &&
            std::any_of(theirs.begin(), theirs.end(), [&](const Cell &cell) { return moved.count(cell.id) > 0; })) {
            cannot_shift("sequence " + std::to_string(other) + " shares these cells and would be moved as well");
        }
    }
}

void Kv::move_positions(llama_seq_id id, Positions range, const char *what, llama_pos (*move)(llama_pos, int), int by) {
    auto &cells = at(id);
    for (Cell &cell : cells) {
        if (range.holds(cell.pos)) {
            cell.pos = move(cell.pos, by);
        }
    }
    std::stable_sort(cells.begin(), cells.end(), by_position);
    shift_pending = shift_pending || attention_;
    if (!agrees(id)) {
        clear(id);
        cannot_shift(std::string("llama.cpp did not ") + what + " the positions as asked; the sequence was cleared");
    }
}

void Kv::add(llama_seq_id id, Positions range, llama_pos delta) {
    memory();
    std::int64_t low = max_position;
    std::int64_t high = -1;
    for (const Cell &cell : cells(id)) {
        if (range.holds(cell.pos)) {
            low = std::min<std::int64_t>(low, cell.pos);
            high = std::max<std::int64_t>(high, cell.pos);
        }
    }
    if (high < 0 || delta == 0) {
        return;
    }
    require(low + delta >= 0 && high + delta <= max_position,
            "positions would leave 0 to " + std::to_string(max_position));
    check_shift(id, range);
    llama_memory_seq_add(memory(), id, range.begin, range.upstream_end(), delta);
    move_positions(id, range, "shift", [](llama_pos pos, int by) { return pos + by; }, delta);
}

void Kv::divide(llama_seq_id id, Positions range, int divisor) {
    memory();
    require(divisor >= 1, "the divisor must be at least 1");
    const auto moved = positions_of(in_range(id, range));
    if (divisor == 1 || moved.empty()) {
        return;
    }
    check_shift(id, range);
    // llama_memory_seq_div turns the keys the wrong way (llama_kv_cells::pos_div adds old - new to the shift), so each
    // position is moved by itself. In rising order: none moves to one that is still to come.
    for (std::size_t i = 0; i < moved.size(); ++i) {
        if (i == 0 || moved[i] != moved[i - 1]) {
            llama_memory_seq_add(memory(), id, moved[i], moved[i] + 1, moved[i] / divisor - moved[i]);
        }
    }
    move_positions(id, range, "divide", [](llama_pos pos, int by) { return pos / by; }, divisor);
}

void Kv::check_exportable(llama_seq_id id, Positions range) const {
    const auto &cells = this->cells(id);
    require(!cells.empty(), "the sequence is empty: there is no state to copy");
    const auto copied = positions_of(in_range(id, range));
    require(!copied.empty(), "the sequence has no tokens at these positions: there is no state to copy");
    const bool to_end = cells.back().pos < range.end;
    if (recurrent_ && !to_end) {
        cannot_trim("recurrent state exists at the end of the sequence only: copy when the sequence ends there");
    }
    if (!resident(id) && complete_from(id) > seen_from(copied)) {
        cannot_trim("the sliding window has let go of cells in that range: copy it when it has just been evaluated");
    }
}

} // namespace ipyllama
