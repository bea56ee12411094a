// One run of tokens with KV in a context.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "context.h"
#include "state.h"

namespace ipyllama {

// A sequence number of a context, taken until this goes. It keeps no memory alive: a context can be closed before.
struct Slot {
    Slot(std::shared_ptr<Context> context_, std::optional<llama_seq_id> wanted);
    ~Slot();
    Slot(const Slot &) = delete;
    Slot &operator=(const Slot &) = delete;

    std::shared_ptr<Context> context;
    llama_seq_id id = -1;
};

// State that stays in the buffers of the device. The next one of the same sequence takes its place.
class DeviceState {
  public:
    DeviceState(std::weak_ptr<Slot> origin_, std::uint64_t number_, Buffer bytes_, Restored cells_)
        : origin(std::move(origin_)), number(number_), bytes(std::move(bytes_)), restored(std::move(cells_)) {}

    const std::weak_ptr<Slot> origin;
    const std::uint64_t number;
    const Buffer bytes;
    const Restored restored;
};

class Sequence {
  public:
    // Takes a sequence number of the context, empty: `id`, or the first that is free.
    Sequence(std::shared_ptr<Context> context, std::optional<llama_seq_id> id);

    // Gives the number back and frees its cells.
    void close() { owned_.close(); }
    bool closed() const { return owned_.closed(); }
    std::shared_ptr<Slot> slot() const { return owned_.get(); }
    std::shared_ptr<Context> context() const { return slot()->context; }
    llama_seq_id id() const { return slot()->id; }

    // One step: evaluates up to n_batch tokens after the ledger. See ContextHandle::decode.
    void decode(std::vector<llama_token> tokens, Outputs outputs, std::optional<llama_pos> position);

    // Each of these leaves everything as it was if it is refused. See Kv.
    void remove(Positions range);
    void trim(std::size_t n); // keeps the first n tokens
    void copy(const Sequence &source, Positions range);
    std::shared_ptr<Sequence> fork() const;
    void add(Positions range, llama_pos delta);
    void divide(Positions range, int divisor);
    void keep();
    void clear();

    std::vector<llama_token> tokens() const; // the ledger
    std::vector<llama_pos> positions() const;
    std::vector<std::uint64_t> cells() const; // sequences that share a cell give the same number
    std::size_t size() const;
    llama_pos pos_min() const;
    llama_pos pos_max() const;

    bool has_logits() const;
    std::vector<float> logits() const;     // of the last token evaluated, n_vocab values
    std::vector<float> all_logits() const; // of each token of the last step that has some, n_vocab values each
    std::vector<float> embeddings() const; // of the last token evaluated
    // Runs `use(float *logits, n_vocab)` on the last logits in place.
    template <typename Use> auto with_logits(Use use) const {
        const auto slot = owned_.get();
        const auto handle = slot->context->handle();
        const std::lock_guard lock(handle->mutex);
        return use(logits_row(*handle, last_row(*handle, slot->id)), llama_vocab_n_tokens(handle->model->vocab()));
    }

    // State as llama.cpp writes it, of all tokens or a range of positions. Throws cannot_trim where the memory has no
    // such state. A shift that is pending is applied first, which throws the logits away.
    std::size_t state_size(Positions range, bool partial) const;
    Buffer save(Positions range, bool partial) const;
    std::size_t save_into(std::uint8_t *data, std::size_t size, Positions range, bool partial) const;
    // Tokens that a saved state is of. Throws bad_state like restore().
    std::size_t state_tokens(Bytes state) const;
    // Checked before llama.cpp sees it: bad_state, and everything is as it was. If llama.cpp fails all the same the
    // sequence is empty.
    void restore(Bytes state, const std::vector<llama_token> &tokens); // replaces what the sequence holds
    void append(Bytes state, const std::vector<llama_token> &tokens);  // adds cells after what it holds
    // Back to these tokens, which the sequence begins with, by a partial state that was saved when it held just them.
    // For windowed and hybrid memory.
    void rewind(Bytes partial, const std::vector<llama_token> &tokens);
    std::shared_ptr<DeviceState> save_on_device() const;
    void restore_on_device(const DeviceState &state);

  private:
    static std::int32_t last_row(const ContextHandle &handle, llama_seq_id id);
    static float *logits_row(const ContextHandle &handle, std::int32_t row);
    template <typename Work> auto locked(Work work) const {
        const auto slot = owned_.get();
        const auto handle = slot->context->handle();
        const std::lock_guard lock(handle->mutex);
        return work(*handle, slot->id);
    }

    Owned<Slot> owned_;
};

} // namespace ipyllama
