#include "memory.h"

#include <algorithm>

namespace ipyllama {
namespace {

constexpr llama_pos n_tried = 4;

// Tries to cut a short sequence in the middle.
bool can_cut(ContextHandle &handle) {
    const auto id = handle.scratch();
    const std::vector<llama_token> tokens(n_tried, std::max(llama_vocab_bos(handle.model->vocab()), 0));
    handle.decode({next_piece(handle, id, tokens, Outputs::none, 0)});
    const bool removed = llama_memory_seq_rm(handle.kv->memory(), id, n_tried / 2, -1);
    const bool right = handle.kv->pos_min(id) == 0 && handle.kv->pos_max(id) == n_tried / 2 - 1;
    handle.kv->clear(id);
    return removed && right;
}

std::string kind_of(const llama_model *model) {
    if (llama_model_is_recurrent(model)) {
        return "recurrent";
    }
    return llama_model_is_hybrid(model) ? "hybrid: part attention, part recurrent" : "";
}

Capability probe(ContextHandle &handle) {
    const auto *model = handle.model->model;
    const auto window = llama_model_n_swa(model);
    const bool cut = can_cut(handle);
    const bool windowed = window > 0 && !handle.swa_full;
    Capability found{cut && !windowed ? "full" : "extend", handle.kv->can_shift() && cut && !windowed, ""};
    if (!cut) {
        const auto kind = kind_of(model);
        found.reason = kind.empty() ? "llama.cpp cannot remove a part of a sequence" : kind;
    } else if (windowed) {
        found.reason = "sliding window of " + std::to_string(window) + " tokens without swa_full";
    } else if (!found.can_shift) {
        found.reason = "positions cannot be moved on this architecture";
    }
    try {
        handle.layout();
    } catch (const Error &error) {
        found.level = found.level == "full" ? "full" : "none";
        found.reason = error.what();
    }
    return found;
}

} // namespace

void Memory::clear(bool data) {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    handle->kv->clear_all(data);
    handle->outputs.clear();
}

std::size_t Memory::used() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    return handle->kv->n_used();
}

std::size_t Memory::total() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    return handle->kv->n_total();
}

std::map<llama_seq_id, std::size_t> Memory::counts() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    std::map<llama_seq_id, std::size_t> counts;
    for (llama_seq_id id = 0; id < handle->scratch(); ++id) {
        if (handle->taken[static_cast<std::size_t>(id)]) {
            counts[id] = handle->kv->cells(id).size();
        }
    }
    return counts;
}

bool Memory::can_shift() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    return handle->kv->can_shift();
}

Capability Memory::capability() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    if (llama_get_memory(handle->context) == nullptr) {
        return {"none", false, "this model keeps no KV memory: it encodes text"};
    }
    if (!handle->capability) {
        handle->capability = probe(*handle);
    }
    return *handle->capability;
}

} // namespace ipyllama
