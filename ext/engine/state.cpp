#include "state.h"

#include <algorithm>

#include "error.h"
#include "log.h"

namespace ipyllama {
namespace {

[[noreturn]] void bad(const std::string &why) {
    throw Error(ErrorKind::bad_state, why);
}

void check_tokens(const ContextHandle &handle, const std::vector<llama_token> &tokens) {
    for (const llama_token token : tokens) {
        if (token != LLAMA_TOKEN_NULL) { // a position of an image or of audio
            handle.model->check_token(token);
        }
    }
}

// Positions of a part, in order. `id` negative: of all cells.
std::vector<llama_pos> positions_of(const StateCells &part, llama_seq_id id) {
    std::vector<llama_pos> positions;
    for (const auto &entry : part.entries) {
        if (id < 0 || std::binary_search(entry.ids.begin(), entry.ids.end(), id)) {
            positions.push_back(entry.pos);
        }
    }
    std::sort(positions.begin(), positions.end());
    return positions;
}

// The positions of the ledger: those of the fullest part, or counted back from the one position of recurrent state,
// which is all that it knows.
std::vector<llama_pos> ledger_positions(const std::vector<StateCells> &parts, llama_seq_id id, std::size_t n_tokens) {
    std::vector<llama_pos> best;
    for (const StateCells &part : parts) {
        auto positions = positions_of(part, id);
        if (!part.recurrent && positions.size() > best.size()) {
            best = std::move(positions);
        } else if (part.recurrent && best.empty() && !positions.empty() && parts.size() == 1) {
            const auto last = static_cast<std::int64_t>(positions.back());
            for (std::int64_t pos = last - static_cast<std::int64_t>(n_tokens) + 1; pos <= last; ++pos) {
                best.push_back(static_cast<llama_pos>(std::max<std::int64_t>(pos, 0)));
            }
        }
    }
    return best;
}

// From which position on a part has every cell of the ledger. Throws bad_state if it has others, or lacks the last.
llama_pos complete_from(const StateCells &part, const std::vector<llama_pos> &ledger, llama_seq_id id) {
    const auto positions = positions_of(part, id);
    if (positions.empty() || positions.back() != ledger.back() ||
        !std::includes(ledger.begin(), ledger.end(), positions.begin(), positions.end())) {
        bad("this state does not fit: its parts hold different positions");
    }
    std::size_t n = 0;
    while (n < positions.size() && positions[positions.size() - 1 - n] == ledger[ledger.size() - 1 - n]) {
        ++n;
    }
    return part.recurrent ? ledger.front() : ledger[ledger.size() - n];
}

// Throws bad_state if a token after these would not find what it can see.
void check_complete(const ContextHandle &handle, const std::vector<llama_pos> &ledger, llama_pos from) {
    if (from > handle.kv->seen_from(ledger)) {
        bad("this state does not fit: cells are missing before position " + std::to_string(from));
    }
}

Restored match_sequence(ContextHandle &handle, const std::vector<StateCells> &parts, llama_seq_id id,
                        const std::vector<llama_token> &tokens) {
    check_tokens(handle, tokens);
    const auto ledger = ledger_positions(parts, id, tokens.size());
    if (ledger.size() != tokens.size() || tokens.empty()) {
        bad("this state holds " + std::to_string(ledger.size()) + " cells and there are " +
            std::to_string(tokens.size()) + " tokens for it");
    }
    Restored restored{{}, ledger.front()};
    for (const StateCells &part : parts) {
        restored.complete_from = std::max(restored.complete_from, complete_from(part, ledger, id));
    }
    check_complete(handle, ledger, restored.complete_from);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        restored.cells.push_back({tokens[i], ledger[i], handle.kv->next_cell()});
    }
    return restored;
}

// Cells that belong to several sequences get one id.
void share_cells(const StateCells &part, std::map<llama_seq_id, Restored> &restored, Kv &kv) {
    const auto first_shared = kv.next_cell();
    for (const auto &entry : part.entries) {
        if (entry.ids.size() < 2) {
            continue;
        }
        const auto shared = kv.next_cell();
        for (const llama_seq_id id : entry.ids) { // match_sequence saw to it that there is one, and not shared yet
            auto &cells = restored.at(id).cells;
            auto found = std::upper_bound(cells.begin(), cells.end(), entry.pos,
                                          [](llama_pos pos, const Cell &cell) { return pos < cell.pos; });
            while ((--found)->id > first_shared) {
            }
            found->id = shared;
        }
    }
}

// The ledgers of the sequences in a checked state. Throws bad_state if tokens are missing, or too many.
std::map<llama_seq_id, Restored> match_context(ContextHandle &handle, const std::vector<StateCells> &parts,
                                               const std::map<llama_seq_id, std::vector<llama_token>> &tokens) {
    const auto n = handle.taken.size();
    std::map<llama_seq_id, Restored> restored;
    for (llama_seq_id id = 0; static_cast<std::size_t>(id) < n; ++id) {
        const auto found = tokens.find(id);
        const bool given = found != tokens.end() && !found->second.empty();
        const bool held = std::any_of(parts.begin(), parts.end(),
                                      [&](const StateCells &part) { return !positions_of(part, id).empty(); });
        if (given != held) {
            bad(held ? "this state holds sequence " + std::to_string(id) + ": its tokens are needed too"
                     : "this state holds nothing of sequence " + std::to_string(id));
        }
        if (held) {
            require(handle.taken[static_cast<std::size_t>(id)], "this state holds sequence " + std::to_string(id) +
                                                                    ": make Sequence(context, " + std::to_string(id) +
                                                                    ") first");
            restored.emplace(id, match_sequence(handle, parts, id, found->second));
        }
    }
    require(tokens.empty() || (tokens.begin()->first >= 0 && static_cast<std::size_t>(tokens.rbegin()->first) < n),
            "sequence numbers are 0 to " + std::to_string(n - 1));
    return restored;
}

void restore_context(ContextHandle &handle, Bytes state,
                     const std::map<llama_seq_id, std::vector<llama_token>> &tokens) {
    Kv &kv = *handle.kv;
    const auto n = handle.taken.size();
    const auto parts = handle.layout().check_context(state, handle.model->architecture(), n);
    if (!parts.front().recurrent && parts.front().entries.size() > llama_n_ctx(handle.context)) {
        bad("this state holds " + std::to_string(parts.front().entries.size()) + " cells and this context has " +
            std::to_string(llama_n_ctx(handle.context)));
    }
    auto restored = match_context(handle, parts, tokens);
    share_cells(parts.front(), restored, kv);
    kv.clear_all(true);
    handle.outputs.clear();
    const auto mark = log::next_number();
    const auto read = llama_state_set_data(handle.context, state.data, state.size);
    for (auto &[id, sequence] : restored) {
        kv.assign(id, std::move(sequence.cells), sequence.complete_from);
    }
    bool agrees = read == state.size;
    for (llama_seq_id id = 0; static_cast<std::size_t>(id) < n; ++id) {
        agrees = agrees && kv.agrees(id);
    }
    if (!agrees) {
        kv.clear_all(true);
        bad("llama.cpp could not take this state; the context is empty now" + log::reason_since(mark));
    }
}

} // namespace

std::size_t state_size(ContextHandle &handle, llama_seq_id id, llama_state_seq_flags flags) {
    return llama_state_seq_get_size_ext(handle.context, id, flags);
}

Buffer copy_out(ContextHandle &handle, llama_seq_id id, llama_state_seq_flags flags) {
    Buffer buffer(state_size(handle, id, flags));
    if (llama_state_seq_get_data_ext(handle.context, buffer.data(), buffer.size(), id, flags) != buffer.size()) {
        bad("the state could not be copied out");
    }
    return buffer;
}

void with_range(ContextHandle &handle, llama_seq_id id, Positions range, const std::function<void(llama_seq_id)> &use) {
    handle.apply_shift();
    handle.kv->check_exportable(id, range);
    const auto &cells = handle.kv->cells(id);
    if (range.holds(cells.front().pos) && range.holds(cells.back().pos)) {
        use(id);
        return;
    }
    const llama_seq_id scratch = handle.scratch();
    handle.kv->lend(id, scratch, range);
    try {
        use(scratch);
    } catch (...) {
        handle.kv->clear(scratch);
        throw;
    }
    handle.kv->clear(scratch);
}

Restored match(ContextHandle &handle, const std::vector<StateCells> &parts, const std::vector<llama_token> &tokens) {
    return match_sequence(handle, parts, -1, tokens);
}

llama_pos match_partial(const ContextHandle &handle, const std::vector<StateCells> &parts,
                        const std::vector<Cell> &cells) {
    std::vector<llama_pos> ledger;
    std::transform(cells.begin(), cells.end(), std::back_inserter(ledger), [](const Cell &cell) { return cell.pos; });
    llama_pos from = 0;
    for (const StateCells &part : parts) {
        from = std::max(from, complete_from(part, ledger, -1));
    }
    check_complete(handle, ledger, from);
    return from;
}

std::size_t count_tokens(const std::vector<StateCells> &parts, llama_seq_id id) {
    std::size_t most = 0;
    for (const StateCells &part : parts) {
        const auto positions = positions_of(part, id);
        if (!part.recurrent) {
            most = std::max(most, positions.size());
        } else if (parts.size() == 1 && !positions.empty()) {
            most = static_cast<std::size_t>(positions.back()) + 1;
        }
    }
    return most;
}

std::size_t Context::state_limit() {
    const auto handle = this->handle();
    const std::lock_guard lock(handle->mutex);
    return handle->layout().most_bytes(handle->kv->n_total(), handle->taken.size() + 1);
}

std::map<llama_seq_id, std::size_t> Context::state_tokens(Bytes state) {
    const auto handle = this->handle();
    const std::lock_guard lock(handle->mutex);
    const auto n = handle->taken.size();
    const auto parts = handle->layout().check_context(state, handle->model->architecture(), n);
    std::map<llama_seq_id, std::size_t> counts;
    for (llama_seq_id id = 0; static_cast<std::size_t>(id) < n; ++id) {
        if (const auto count = count_tokens(parts, id)) {
            counts[id] = count;
        }
    }
    return counts;
}

std::size_t Context::state_size() {
    const auto handle = this->handle();
    const std::lock_guard lock(handle->mutex);
    handle->kv->memory();
    handle->apply_shift();
    return llama_state_get_size(handle->context);
}

Buffer Context::save() {
    Buffer buffer(state_size());
    if (save_into(buffer.data(), buffer.size()) != buffer.size()) {
        bad("the context changed while its state was copied out");
    }
    return buffer;
}

std::size_t Context::save_into(std::uint8_t *data, std::size_t size) {
    const auto needed = state_size();
    const auto handle = this->handle();
    const std::lock_guard lock(handle->mutex);
    require(needed <= size,
            "the buffer has " + std::to_string(size) + " bytes and the state needs " + std::to_string(needed));
    return llama_state_get_data(handle->context, data, size);
}

void Context::restore(Bytes state, const std::map<llama_seq_id, std::vector<llama_token>> &tokens) {
    const auto handle = this->handle();
    const std::lock_guard lock(handle->mutex);
    restore_context(*handle, state, tokens);
}

} // namespace ipyllama
