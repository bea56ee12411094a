#include "sequence.h"

#include <algorithm>

#include "log.h"

namespace ipyllama {

Sequence::Sequence(std::shared_ptr<Context> context, llama_seq_id id) : context_(std::move(context)), id_(id) {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    const auto n = handle->sequence_taken.size();
    require(id >= 0 && static_cast<std::size_t>(id) < n,
            "sequence " + std::to_string(id) + " does not exist (0 to " + std::to_string(n - 1) + ")");
    require(!handle->sequence_taken[static_cast<std::size_t>(id)],
            "sequence " + std::to_string(id) + " is in use: drop the other Sequence first");
    handle->memory();
    handle->sequence_taken[static_cast<std::size_t>(id)] = true;
}

Sequence::~Sequence() {
    try {
        const auto handle = context_->handle();
        const std::lock_guard lock(handle->mutex);
        clear_locked(*handle);
        handle->sequence_taken[static_cast<std::size_t>(id_)] = false;
    } catch (const Error &) { // the context is closed: there is nothing to give back
    }
}

void Sequence::decode(const std::vector<llama_token> &tokens) {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    const auto n_batch = llama_n_batch(handle->context);
    const auto n_ctx = llama_n_ctx(handle->context);
    require(!tokens.empty(), "there are no tokens to evaluate");
    require(tokens.size() <= n_batch,
            std::to_string(tokens.size()) + " tokens in one step: at most " + std::to_string(n_batch) + " (n_batch)");
    require(ledger_.size() + tokens.size() <= n_ctx, "the context of " + std::to_string(n_ctx) + " tokens is full");
    std::for_each(tokens.begin(), tokens.end(), [&](llama_token token) { handle->model->check_token(token); });
    if (handle->abort) {
        throw Error(ErrorKind::aborted, "the abort flag is set");
    }
    const auto mark = log::next_number();
    const int status = handle->decode(id_, static_cast<llama_pos>(ledger_.size()), tokens);
    if (status == 0) {
        ledger_.insert(ledger_.end(), tokens.begin(), tokens.end());
        return;
    }
    reconcile_locked(*handle, tokens);
    if (status == 2) {
        throw Error(ErrorKind::aborted, "the step was aborted");
    }
    throw Error(ErrorKind::decode, status == 1 ? "no room in KV memory for this batch: ask for a larger n_ctx"
                                               : "llama.cpp could not evaluate the batch: " + log::errors_since(mark));
}

// After a step that failed. Whatever micro-batches did finish stay in memory: pos_max tells. Not so for recurrent
// state, which moved on with the one that did not finish and has no way back.
void Sequence::reconcile_locked(ContextHandle &handle, const std::vector<llama_token> &tokens) {
    const auto kept = static_cast<std::size_t>(llama_memory_seq_pos_max(handle.memory(), id_) + 1);
    const auto *model = handle.model->model;
    const bool lost = kept > ledger_.size() && (llama_model_is_recurrent(model) || llama_model_is_hybrid(model));
    if (lost || kept < ledger_.size() || kept > ledger_.size() + tokens.size()) {
        clear_locked(handle);
        return;
    }
    const auto n_new = static_cast<std::ptrdiff_t>(kept - ledger_.size());
    ledger_.insert(ledger_.end(), tokens.begin(), tokens.begin() + n_new);
}

void Sequence::trim(std::size_t n) {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    require(n <= ledger_.size(), "cannot trim to " + std::to_string(n) + ": the sequence holds " +
                                     std::to_string(ledger_.size()) + " tokens");
    if (n == ledger_.size()) {
        return;
    }
    if (n == 0) {
        clear_locked(*handle);
        return;
    }
    auto *memory = handle->memory();
    const auto p = static_cast<llama_pos>(n);
    if (!llama_memory_seq_rm(memory, id_, p, -1)) {
        throw Error(ErrorKind::cannot_trim, "this architecture cannot drop the end of a sequence");
    }
    forget_logits(*handle);
    // A windowed model may answer yes and lose cells inside the window: its own positions tell.
    if (llama_memory_seq_pos_max(memory, id_) != p - 1 || llama_memory_seq_pos_min(memory, id_) != 0) {
        clear_locked(*handle);
        throw Error(ErrorKind::cannot_trim, "the cells before the cut are gone (sliding window)");
    }
    ledger_.resize(n);
}

void Sequence::clear() {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    clear_locked(*handle);
}

void Sequence::clear_locked(ContextHandle &handle) {
    llama_memory_seq_rm(handle.memory(), id_, -1, -1); // a whole sequence is never refused
    ledger_.clear();
    forget_logits(handle);
}

void Sequence::forget_logits(ContextHandle &handle) const {
    if (handle.logits_of == id_) {
        handle.logits_of = -1;
    }
}

std::vector<llama_token> Sequence::tokens() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    return ledger_;
}

std::size_t Sequence::size() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    return ledger_.size();
}

llama_pos Sequence::pos_min() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    return llama_memory_seq_pos_min(handle->memory(), id_);
}

llama_pos Sequence::pos_max() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    return llama_memory_seq_pos_max(handle->memory(), id_);
}

bool Sequence::has_logits() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    return handle->logits_of == id_;
}

float *Sequence::last_logits(const ContextHandle &handle) const {
    require(handle.logits_of == id_, "there are no logits: evaluate a token first");
    float *logits = llama_get_logits_ith(handle.context, -1);
    require(logits != nullptr, "there are no logits: evaluate a token first");
    return logits;
}

std::vector<float> Sequence::logits() const {
    return with_logits([](const float *values, int n) { return std::vector<float>(values, values + n); });
}

std::shared_ptr<Snapshot> Sequence::snapshot() const {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    std::vector<std::uint8_t> data(llama_state_seq_get_size(handle->context, id_));
    const auto written = llama_state_seq_get_data(handle->context, data.data(), data.size(), id_);
    if (written != data.size()) {
        throw Error(ErrorKind::bad_state, "the state could not be copied out");
    }
    return std::make_shared<Snapshot>(handle, ledger_, std::move(data));
}

void Sequence::restore(const Snapshot &snapshot) {
    const auto handle = context_->handle();
    const std::lock_guard lock(handle->mutex);
    if (!snapshot.comes_from(handle)) {
        throw Error(ErrorKind::bad_state, "this snapshot comes from another context");
    }
    clear_locked(*handle);
    const auto &data = snapshot.data();
    const auto read = llama_state_seq_set_data(handle->context, data.data(), data.size(), id_);
    const auto last = static_cast<llama_pos>(snapshot.tokens().size()) - 1;
    if (read != data.size() || llama_memory_seq_pos_max(handle->memory(), id_) != last) {
        clear_locked(*handle);
        throw Error(ErrorKind::bad_state, "the state could not be put back");
    }
    ledger_ = snapshot.tokens();
}

} // namespace ipyllama
