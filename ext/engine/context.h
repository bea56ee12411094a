// KV memory and compute buffers for one model.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "llama.h"

#include "buffer.h"
#include "context_options.h"
#include "kv.h"
#include "model.h"
#include "owned.h"
#include "state_layout.h"

namespace ipyllama {

// What a sequence of this model and context can do, tried out.
struct Capability {
    // full: cut anywhere. extend: only go back to copies. none: no memory, or no way back.
    std::string level;
    bool can_shift;
    std::string reason; // why not full, or why it cannot be shifted; "" if it can do everything
};

// Tokens of one sequence in a step. Its logits are asked for after the last token, after each, or not at all.
enum class Outputs { none, last, all };
struct Piece {
    llama_seq_id id;
    std::vector<llama_token> tokens;
    std::vector<llama_pos> positions;
    Outputs outputs = Outputs::last;
};

struct AdapterHandle;

struct ContextHandle {
    ContextHandle(std::shared_ptr<ModelHandle> model_, const ContextOptions &options);
    ~ContextHandle() { llama_free(context); }
    ContextHandle(const ContextHandle &) = delete;
    ContextHandle &operator=(const ContextHandle &) = delete;

    // One step. Throws aborted if the abort flag was set, decode where llama.cpp fails; the ledgers then hold what
    // did get evaluated: nothing at all where recurrent state was spoilt on the way, in a step of several sequences
    // that of all others too.
    void decode(const std::vector<Piece> &pieces);
    // The same for a model that keeps no memory. Has to fit into one micro-batch.
    void encode(const std::vector<Piece> &pieces);
    // Throws bad_argument for what this model cannot take a step of, or to.
    void check_steps_to(llama_pos last) const;
    // Lets llama.cpp turn keys whose positions were moved. Throws the logits away.
    void apply_shift();
    // How this context's state is written down; evaluates one token if nothing is in memory yet.
    const StateLayout &layout();
    // The sequence beyond those that users have: for copies of ranges and for probing.
    llama_seq_id scratch() const { return static_cast<llama_seq_id>(taken.size()); }

    std::shared_ptr<ModelHandle> model;
    std::atomic<bool> abort{false};
    std::mutex mutex; // one native call at a time; guards all below
    llama_context *context = nullptr;
    std::optional<Kv> kv;
    std::vector<bool> taken; // by sequence number
    // Where in the last step's batch each sequence's logits are.
    std::map<llama_seq_id, std::vector<std::int32_t>> outputs;
    struct OnDevice {
        std::uint64_t number = 0;
        std::size_t size = 0; // of the whole state
    };
    std::map<llama_seq_id, OnDevice> device_states; // the last one
    std::optional<Capability> capability;
    bool swa_full;
    // The LoRA adapters in use and their scales, in the order of set_adapters(): alive as long as `context`.
    std::vector<std::pair<std::shared_ptr<AdapterHandle>, float>> adapters;
    bool embeddings;

  private:
    int run(const std::vector<Piece> &pieces);
    void check(const std::vector<Piece> &pieces) const; // throws aborted, too
    std::vector<Piece> one_token() const;               // in the scratch sequence

    std::optional<StateLayout> layout_;
    llama_pos n_positions_; // that the model has
};

// What `tokens` are as the next piece of a sequence of this context.
Piece next_piece(const ContextHandle &handle, llama_seq_id id, std::vector<llama_token> tokens, Outputs outputs,
                 std::optional<llama_pos> position);

class Batch;

class Context {
  public:
    Context(const Model &model, const ContextOptions &options);

    // Throws closed after close(), and in the child of a fork: its threads are the parent's.
    std::shared_ptr<ContextHandle> handle() const;
    // Stops a running step first; memory is freed as soon as no call uses it.
    void close();
    bool closed() const { return owned_.closed(); }

    // Ends a running step early and refuses new ones until clear_abort().
    void abort() { owned_.get()->abort = true; }
    void clear_abort() { owned_.get()->abort = false; }

    // Evaluates a batch of several sequences in one step.
    void decode(const Batch &batch);
    // Threads for steps of one token, and of several.
    void set_threads(int n_threads, int n_threads_batch);

    // The state of all sequences, as llama.cpp writes it. Every cell is in it, those outside a window too.
    std::size_t state_size();
    Buffer save();
    std::size_t save_into(std::uint8_t *data, std::size_t size);
    // Most bytes of any state of this context, or of a sequence of it.
    std::size_t state_limit();
    // Tokens of each sequence in a state. Throws bad_state like restore().
    std::map<llama_seq_id, std::size_t> state_tokens(Bytes state);
    // Replaces everything. `tokens` by sequence number. Checked first: bad_state, and all is as it was; if llama.cpp
    // fails all the same the context is empty.
    void restore(Bytes state, const std::map<llama_seq_id, std::vector<llama_token>> &tokens);

    std::uint32_t n_ctx() const;
    std::uint32_t n_batch() const;
    std::uint32_t n_ubatch() const;
    std::uint32_t n_seq_max() const;
    int n_vocab() const;
    int n_threads() const;
    int n_threads_batch() const;

  private:
    Owned<ContextHandle> owned_;
    const long process_;
};

} // namespace ipyllama
