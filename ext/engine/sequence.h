// One run of tokens with KV in a context.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "context.h"

namespace ipyllama {

// The KV of a whole sequence, copied out. Only a Sequence makes one, so its bytes are always well formed; it
// fits the context that it came from. Of windowed layers upstream copies the window only: a sequence longer than
// that comes back with its cells in other places, equal within rounding, and cannot be trimmed.
class Snapshot {
  public:
    Snapshot(std::weak_ptr<ContextHandle> origin, std::vector<llama_token> tokens, std::vector<std::uint8_t> data)
        : origin_(std::move(origin)), tokens_(std::move(tokens)), data_(std::move(data)) {}

    bool comes_from(const std::shared_ptr<ContextHandle> &context) const { return origin_.lock() == context; }
    const std::vector<llama_token> &tokens() const { return tokens_; }
    const std::vector<std::uint8_t> &data() const { return data_; }

  private:
    std::weak_ptr<ContextHandle> origin_;
    std::vector<llama_token> tokens_;
    std::vector<std::uint8_t> data_;
};

class Sequence {
  public:
    // Takes the sequence number `id` of the context, empty.
    Sequence(std::shared_ptr<Context> context, llama_seq_id id);
    ~Sequence();
    Sequence(const Sequence &) = delete;
    Sequence &operator=(const Sequence &) = delete;

    // One step: evaluates up to n_batch tokens after the ledger. Throws aborted if the abort flag was set; the
    // ledger then holds what did get evaluated: nothing at all where recurrent state was spoilt on the way.
    void decode(const std::vector<llama_token> &tokens);
    // Keeps the first n tokens. Throws cannot_trim where the architecture refuses: the sequence is then as it
    // was, or empty where upstream removed cells that it should have kept.
    void trim(std::size_t n);
    void clear();

    std::vector<llama_token> tokens() const; // the ledger
    std::size_t size() const;
    llama_pos pos_min() const;
    llama_pos pos_max() const;
    bool has_logits() const;
    std::vector<float> logits() const; // of the last token evaluated, n_vocab values

    std::shared_ptr<Snapshot> snapshot() const;
    // Replaces what the sequence holds. On failure it is empty.
    void restore(const Snapshot &snapshot);

    std::shared_ptr<Context> context() const { return context_; }
    // Runs `use(float *logits, n_vocab)` on the last logits in place.
    template <typename Use> auto with_logits(Use use) const {
        const auto handle = context_->handle();
        const std::lock_guard lock(handle->mutex);
        return use(last_logits(*handle), llama_vocab_n_tokens(handle->model->vocab()));
    }

  private:
    float *last_logits(const ContextHandle &handle) const;
    void clear_locked(ContextHandle &handle);
    void forget_logits(ContextHandle &handle) const;
    void reconcile_locked(ContextHandle &handle, const std::vector<llama_token> &tokens);

    std::shared_ptr<Context> context_;
    llama_seq_id id_;
    std::vector<llama_token> ledger_; // guarded by the context's mutex
};

} // namespace ipyllama
