// State of a sequence: out of the context, and back in.
#include <algorithm>

#include "ggml-backend.h"

#include "log.h"

#include "sequence.h"

namespace ipyllama {
namespace {

void check_room(const ContextHandle &handle, llama_seq_id id, std::size_t n_cells) {
    const auto free = handle.kv->n_free_without(id);
    const bool cells_are_tokens = !llama_model_is_recurrent(handle.model->model);
    if (cells_are_tokens && n_cells > free) {
        throw Error(ErrorKind::bad_state, "this state needs " + std::to_string(n_cells) + " cells and " +
                                              std::to_string(free) + " are free: ask for a larger n_ctx");
    }
}

// What every device's tensors are aligned to.
std::size_t alignment_of_devices() {
    std::size_t most = 1;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        most = std::max(most, ggml_backend_buft_get_alignment(ggml_backend_dev_buffer_type(ggml_backend_dev_get(i))));
    }
    return most;
}

llama_state_seq_flags to_flags(bool partial) {
    return partial ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
}

Error not_taken(std::uint64_t mark) {
    return {ErrorKind::bad_state,
            "llama.cpp could not take this state; the sequence is empty now" + log::reason_since(mark)};
}

// Hands checked bytes to llama.cpp, into a sequence that is empty afterwards if they are not taken as they should be.
void set_state(ContextHandle &handle, llama_seq_id id, Bytes state, Restored restored) {
    const auto mark = log::next_number();
    handle.kv->clear(id);
    const auto read = llama_state_seq_set_data(handle.context, state.data, state.size, id);
    handle.kv->assign(id, std::move(restored.cells), restored.complete_from);
    if (read != state.size || !handle.kv->agrees(id)) {
        handle.kv->clear(id);
        throw not_taken(mark);
    }
}

// llama.cpp puts a copy of the same size into the buffer of the last one, and ends the process if it lies in more
// pieces than that. A smaller copy in between makes it take another buffer.
void prepare_device(ContextHandle &handle, llama_seq_id id) {
    const auto size = state_size(handle, id, LLAMA_STATE_SEQ_FLAGS_NONE);
    auto &last = handle.device_states[id];
    const auto &cells = handle.kv->cells(id);
    if (last.size == size && cells.size() > 1) {
        if (cells.front().pos == cells.back().pos) {
            throw Error(ErrorKind::bad_state, "all tokens have the same position: llama.cpp cannot copy that on the "
                                              "device again. Save it to bytes.");
        }
        handle.kv->without_last(id, handle.scratch(), [&] { copy_out(handle, id, LLAMA_STATE_SEQ_FLAGS_ON_DEVICE); });
    }
    last.size = size;
}

} // namespace

std::size_t Sequence::state_size(Positions range, bool partial) const {
    return locked([&](ContextHandle &handle, llama_seq_id id) {
        std::size_t size = 0;
        with_range(handle, id, range,
                   [&](llama_seq_id held) { size = ipyllama::state_size(handle, held, to_flags(partial)); });
        return size;
    });
}

Buffer Sequence::save(Positions range, bool partial) const {
    return locked([&](ContextHandle &handle, llama_seq_id id) {
        Buffer buffer(0);
        with_range(handle, id, range, [&](llama_seq_id held) { buffer = copy_out(handle, held, to_flags(partial)); });
        return buffer;
    });
}

std::size_t Sequence::save_into(std::uint8_t *data, std::size_t size, Positions range, bool partial) const {
    return locked([&](ContextHandle &handle, llama_seq_id id) {
        std::size_t written = 0;
        with_range(handle, id, range, [&](llama_seq_id held) {
            const auto needed = ipyllama::state_size(handle, held, to_flags(partial));
            require(needed <= size,
                    "the buffer has " + std::to_string(size) + " bytes and the state needs " + std::to_string(needed));
            written = llama_state_seq_get_data_ext(handle.context, data, size, held, to_flags(partial));
        });
        return written;
    });
}

std::size_t Sequence::state_tokens(Bytes state) const {
    return locked([&](ContextHandle &handle, llama_seq_id) {
        return count_tokens(handle.layout().check_sequence(state, false), -1);
    });
}

void Sequence::restore(Bytes state, const std::vector<llama_token> &tokens) {
    locked([&](ContextHandle &handle, llama_seq_id id) {
        auto restored = match(handle, handle.layout().check_sequence(state, false), tokens);
        check_room(handle, id, restored.cells.size());
        handle.outputs.erase(id); // it carries none
        set_state(handle, id, state, std::move(restored));
    });
}

void Sequence::append(Bytes state, const std::vector<llama_token> &tokens) {
    locked([&](ContextHandle &handle, llama_seq_id id) {
        auto restored = match(handle, handle.layout().check_sequence(state, false), tokens);
        const auto &cells = handle.kv->cells(id);
        require(cells.empty() || cells.back().pos < restored.cells.front().pos,
                "the block begins at position " + std::to_string(restored.cells.front().pos) +
                    " and the sequence ends at " + std::to_string(cells.empty() ? -1 : cells.back().pos));
        check_room(handle, handle.scratch(), restored.cells.size());
        handle.outputs.erase(id); // it carries none
        if (cells.empty()) {
            set_state(handle, id, state, std::move(restored));
            return;
        }
        set_state(handle, handle.scratch(), state, std::move(restored));
        handle.kv->join(handle.scratch(), id);
        handle.kv->clear(handle.scratch());
    });
}

void Sequence::rewind(Bytes partial, const std::vector<llama_token> &tokens) {
    locked([&](ContextHandle &handle, llama_seq_id id) {
        const auto &layout = handle.layout();
        const auto &cells = handle.kv->cells(id);
        require(layout.has_partial(), "this memory has no part that could be put back alone: use trim or restore");
        require(!tokens.empty() && tokens.size() <= cells.size() &&
                    std::equal(tokens.begin(), tokens.end(), cells.begin(),
                               [](llama_token token, const Cell &cell) { return token == cell.token; }),
                "the sequence does not begin with these tokens: restore a whole state");
        require(tokens.size() == cells.size() || cells[tokens.size() - 1].pos < cells[tokens.size()].pos,
                "the last of these tokens has the same position as the next");
        handle.apply_shift();
        std::vector<Cell> kept(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(tokens.size()));
        const auto from = match_partial(handle, layout.check_sequence(partial, true), kept);
        handle.outputs.erase(id); // it carries none
        const auto mark = log::next_number();
        const auto read = llama_state_seq_set_data_ext(handle.context, partial.data, partial.size, id,
                                                       LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        const bool cut = llama_memory_seq_rm(handle.kv->memory(), id, kept.back().pos + 1, -1);
        handle.kv->assign(id, std::move(kept), from);
        if (read != partial.size || !cut || !handle.kv->agrees(id)) {
            handle.kv->clear(id);
            throw not_taken(mark);
        }
    });
}

std::shared_ptr<DeviceState> Sequence::save_on_device() const {
    const auto slot = owned_.get();
    return locked([&](ContextHandle &handle, llama_seq_id id) {
        handle.apply_shift();
        handle.kv->check_exportable(id, {});
        const auto reason = handle.layout().no_device_copy(alignment_of_devices());
        require(reason.empty(), "this context's state cannot be copied on the device (" + reason + "): use save");
        prepare_device(handle, id);
        auto bytes = copy_out(handle, id, LLAMA_STATE_SEQ_FLAGS_ON_DEVICE);
        return std::make_shared<DeviceState>(slot, ++handle.device_states[id].number, std::move(bytes),
                                             Restored{handle.kv->cells(id), handle.kv->saved_from(id)});
    });
}

void Sequence::restore_on_device(const DeviceState &state) {
    const auto slot = owned_.get();
    locked([&](ContextHandle &handle, llama_seq_id id) {
        if (state.origin.lock() != slot || state.number != handle.device_states[id].number) {
            throw Error(ErrorKind::bad_state, "this state is gone from the device: another one of the sequence took "
                                              "its place, or it belongs to another sequence");
        }
        check_room(handle, id, state.restored.cells.size());
        handle.outputs.erase(id); // it carries none
        handle.kv->clear(id);
        const auto mark = log::next_number();
        const auto read = llama_state_seq_set_data_ext(handle.context, state.bytes.bytes().data, state.bytes.size(), id,
                                                       LLAMA_STATE_SEQ_FLAGS_ON_DEVICE);
        auto cells = state.restored.cells;
        std::for_each(cells.begin(), cells.end(), [&](Cell &cell) { cell.id = handle.kv->next_cell(); });
        handle.kv->assign(id, std::move(cells), state.restored.complete_from);
        if (read == 0 || !handle.kv->agrees(id)) {
            handle.kv->clear(id);
            throw not_taken(mark);
        }
    });
}

} // namespace ipyllama
