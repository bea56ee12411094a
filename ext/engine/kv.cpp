#include "kv.h"

#include <algorithm>
#include <unordered_set>

#include "error.h"
#include "meta.h"

namespace ipyllama {

std::vector<llama_pos> positions_of(const std::vector<Cell> &cells) {
    std::vector<llama_pos> positions(cells.size());
    std::transform(cells.begin(), cells.end(), positions.begin(), [](const Cell &cell) { return cell.pos; });
    return positions;
}

Kv::Kv(const llama_context *context, const llama_model *model, std::size_t n_sequences)
    : memory_(llama_get_memory(context)), n_ctx_(llama_n_ctx(context)), window_(llama_model_n_swa(model)),
      chunked_(meta_value(model, "general.architecture") == "llama4"),
      recurrent_(llama_model_is_recurrent(model) || llama_model_is_hybrid(model)),
      attention_(!llama_model_is_recurrent(model)), sequences_(n_sequences), hole_end_(n_sequences, 0) {}

llama_memory_t Kv::memory() const {
    require(memory_ != nullptr, "this model keeps no KV memory: it encodes text and cannot generate");
    return memory_;
}

llama_pos Kv::pos_min(llama_seq_id id) const {
    return llama_memory_seq_pos_min(memory(), id);
}
llama_pos Kv::pos_max(llama_seq_id id) const {
    return llama_memory_seq_pos_max(memory(), id);
}

llama_pos Kv::next(llama_seq_id id) const {
    const auto &cells = this->cells(id);
    return cells.empty() ? 0 : cells.back().pos + cells.back().length;
}

std::size_t Kv::n_used() const {
    return n_total() - n_free_without(-1);
}

std::vector<Cell> Kv::held(llama_seq_id id) const {
    const auto &all = cells(id);
    return {attention_ || all.empty() ? all.begin() : all.end() - 1, all.end()};
}

std::size_t Kv::n_free_without(llama_seq_id id) const {
    std::unordered_set<std::uint64_t> used;
    for (llama_seq_id other = 0; static_cast<std::size_t>(other) < sequences_.size(); ++other) {
        if (other != id) {
            const auto theirs = held(other);
            std::for_each(theirs.begin(), theirs.end(), [&](const Cell &cell) { used.insert(cell.id); });
        }
    }
    return n_total() - used.size();
}

std::size_t Kv::n_total() const {
    if (memory_ == nullptr) {
        return 0;
    }
    return attention_ ? n_ctx_ : sequences_.size();
}

bool Kv::can_shift() const {
    return memory_ != nullptr && llama_memory_can_shift(memory_);
}

llama_pos Kv::complete_from(llama_seq_id id) const {
    return recurrent_ ? 0 : std::max(pos_min(id), hole_end_[static_cast<std::size_t>(id)]);
}

llama_pos Kv::saved_from(llama_seq_id id) const {
    return std::max(complete_from(id), unseen(cells(id).back().pos + 1) + 1); // llama.cpp copies nothing that is unseen
}

bool Kv::resident(llama_seq_id id) const {
    return window_ == 0 || recurrent_ || cells(id).empty() || complete_from(id) <= cells(id).front().pos;
}

llama_pos Kv::unseen(llama_pos next) const {
    if (window_ == 0 || recurrent_) {
        return -1;
    }
    return chunked_ ? next - next % window_ - 1 : next - window_;
}

llama_pos Kv::seen_from(const std::vector<llama_pos> &positions) const {
    const llama_pos next = positions.back() + 1;
    const auto seen = std::upper_bound(positions.begin(), positions.end(), unseen(next));
    return seen == positions.end() ? next : *seen;
}

bool Kv::agrees(llama_seq_id id) const {
    const auto &cells = this->cells(id);
    const llama_pos low = pos_min(id);
    const llama_pos high = pos_max(id);
    if (cells.empty()) {
        return low == -1 && high == -1;
    }
    if (high != cells.back().pos) {
        return false;
    }
    if (recurrent_) {
        return low == high;
    }
    return window_ == 0 ? low == cells.front().pos
                        : cells.front().pos <= low && complete_from(id) <= seen_from(positions_of(cells));
}

bool Kv::whole(llama_seq_id id, Positions range) const {
    const auto &cells = this->cells(id);
    return cells.empty() || (range.begin <= cells.front().pos && cells.back().pos < range.end);
}

void Kv::clear(llama_seq_id id) {
    llama_memory_seq_rm(memory(), id, -1, -1); // a whole sequence is never refused
    at(id).clear();
    hole_end_[static_cast<std::size_t>(id)] = 0;
}

void Kv::keep(llama_seq_id id) {
    llama_memory_seq_keep(memory(), id);
    for (std::size_t other = 0; other < sequences_.size(); ++other) {
        if (other != static_cast<std::size_t>(id)) {
            sequences_[other].clear();
            hole_end_[other] = 0;
        }
    }
}

void Kv::clear_all(bool data) {
    llama_memory_clear(memory(), data);
    for (auto &cells : sequences_) {
        cells.clear();
    }
    hole_end_.assign(hole_end_.size(), 0);
    shift_pending = false;
}

void Kv::append(llama_seq_id id, const std::vector<llama_token> &tokens, const std::vector<llama_pos> &positions) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        at(id).push_back({tokens[i], positions[i], next_cell()});
    }
}

// Whatever micro-batches did finish stay in memory: pos_max tells. Not so for recurrent state, which moved on with
// the one that did not finish and has no way back.
void Kv::reconcile(llama_seq_id id, const std::vector<llama_token> &tokens, const std::vector<llama_pos> &positions) {
    const llama_pos before = cells(id).empty() ? -1 : cells(id).back().pos;
    const llama_pos now = pos_max(id);
    if (now < before || (recurrent_ && now > before)) {
        clear(id);
        return;
    }
    for (std::size_t i = 0; i < tokens.size() && positions[i] <= now; ++i) {
        at(id).push_back({tokens[i], positions[i], next_cell()});
    }
    if (!agrees(id)) {
        clear(id);
    }
}

void Kv::reach(llama_seq_id id, llama_pos next) {
    auto &last = at(id).back();
    last.length = next - last.pos;
}

void Kv::assign(llama_seq_id id, std::vector<Cell> cells, llama_pos complete_from) {
    const bool complete = cells.empty() || complete_from <= cells.front().pos;
    hole_end_[static_cast<std::size_t>(id)] = complete ? 0 : complete_from;
    at(id) = std::move(cells);
}

std::vector<Cell> Kv::in_range(llama_seq_id id, Positions range) const {
    std::vector<Cell> found;
    std::copy_if(cells(id).begin(), cells(id).end(), std::back_inserter(found),
                 [&](const Cell &cell) { return range.holds(cell.pos); });
    return found;
}

void Kv::lend(llama_seq_id source, llama_seq_id id, Positions range) {
    llama_memory_seq_cp(memory(), source, id, range.begin, range.upstream_end());
    at(id) = in_range(source, range);
}

void Kv::join(llama_seq_id source, llama_seq_id id) {
    llama_memory_seq_cp(memory(), source, id, -1, -1);
    auto &to = at(id);
    to.insert(to.end(), cells(source).begin(), cells(source).end());
    auto &hole_end = hole_end_[static_cast<std::size_t>(id)];
    hole_end = std::max(hole_end, hole_end_[static_cast<std::size_t>(source)]);
    if (!agrees(id)) {
        clear(id);
        throw Error(ErrorKind::bad_state, "llama.cpp did not put the block where it belongs; the sequence was cleared");
    }
}

void Kv::without_last(llama_seq_id id, llama_seq_id spare, const std::function<void()> &use) {
    const auto replace = [&](llama_seq_id from, llama_seq_id to, llama_pos end) {
        llama_memory_seq_rm(memory(), to, -1, -1);
        llama_memory_seq_cp(memory(), from, to, -1, end);
    };
    const auto put_back = [&] {
        replace(spare, id, -1);
        llama_memory_seq_rm(memory(), spare, -1, -1);
    };
    replace(id, spare, -1);
    replace(spare, id, cells(id).back().pos);
    try {
        use();
    } catch (...) {
        put_back();
        throw;
    }
    put_back();
}

} // namespace ipyllama
