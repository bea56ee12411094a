#include "embedding.h"

#include <algorithm>
#include <numeric>

namespace ipyllama {
namespace {

using Inputs = std::vector<std::vector<llama_token>>;

// Every check that llama.cpp would make by ending the process.
void check(const ContextHandle &handle, const Inputs &inputs, bool pooled) {
    const auto *model = handle.model->model;
    require(handle.embeddings, "this context computes no embeddings: make it with embeddings=True");
    const bool encoder = llama_get_memory(handle.context) == nullptr;
    // Pooling sums within a micro-batch, and attention that looks ahead needs all tokens at hand.
    const bool at_once = encoder || pooled || !llama_get_causal_attn(handle.context);
    const std::size_t most = at_once ? llama_n_ubatch(handle.context) : llama_n_batch(handle.context);
    const auto longest = static_cast<std::size_t>(encoder ? llama_model_n_ctx_train(model) : INT32_MAX);
    std::size_t n = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::string name = "input " + std::to_string(i);
        require(!inputs[i].empty(), name + " is empty: there are no tokens to evaluate");
        require(inputs[i].size() <= longest, name + " has " + std::to_string(inputs[i].size()) +
                                                 " tokens: this model takes at most " + std::to_string(longest));
        n += inputs[i].size();
    }
    require(n <= most, std::to_string(n) + " tokens in one step: at most " + std::to_string(most) +
                           (at_once ? " (n_ubatch)" : " (n_batch)"));
}

std::vector<llama_seq_id> free_numbers(const ContextHandle &handle, std::size_t n) {
    std::vector<llama_seq_id> ids;
    for (std::size_t id = 0; id < handle.taken.size() && ids.size() < n; ++id) {
        if (!handle.taken[id]) {
            ids.push_back(static_cast<llama_seq_id>(id));
        }
    }
    require(ids.size() == n, std::to_string(n) + " inputs in one step: " + std::to_string(ids.size()) +
                                 " sequences are free (n_seq_max)");
    return ids;
}

// Whatever happens, nothing of these sequences stays.
class Passing {
  public:
    Passing(ContextHandle &handle, const std::vector<llama_seq_id> &ids) : handle_(handle), ids_(ids) {}
    ~Passing() {
        handle_.outputs.clear();
        if (llama_get_memory(handle_.context) != nullptr) {
            std::for_each(ids_.begin(), ids_.end(), [&](llama_seq_id id) { handle_.kv->clear(id); });
        }
    }
    Passing(const Passing &) = delete;
    Passing &operator=(const Passing &) = delete;

  private:
    ContextHandle &handle_;
    const std::vector<llama_seq_id> &ids_;
};

void append(std::vector<float> &values, const float *row, std::size_t width) {
    if (row == nullptr) {
        throw Error(ErrorKind::decode, "llama.cpp gave no embeddings: this architecture has none");
    }
    values.insert(values.end(), row, row + width);
}

} // namespace

Embeddings embed(const Context &context, const Inputs &inputs) {
    const auto handle = context.handle();
    const std::lock_guard lock(handle->mutex);
    const auto pooling = llama_pooling_type(handle->context);
    const bool pooled = pooling != LLAMA_POOLING_TYPE_NONE;
    check(*handle, inputs, pooled);
    const auto n_embd_out = static_cast<std::uint32_t>(llama_model_n_embd_out(handle->model->model));
    Embeddings found{pooling == LLAMA_POOLING_TYPE_RANK ? handle->model->n_cls_out() : n_embd_out, pooled, {}};
    if (inputs.empty()) {
        return found;
    }
    const auto ids = free_numbers(*handle, inputs.size());
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        pieces.push_back(next_piece(*handle, ids[i], inputs[i], Outputs::all, 0));
    }
    const Passing guard(*handle, ids);
    if (llama_get_memory(handle->context) == nullptr) {
        handle->encode(pieces);
    } else {
        handle->decode(pieces);
    }
    std::int32_t token = 0;
    for (const Piece &piece : pieces) {
        auto &values = found.inputs.emplace_back();
        if (found.pooled) {
            append(values, llama_get_embeddings_seq(handle->context, piece.id), found.width);
            continue;
        }
        for (std::size_t i = 0; i < piece.tokens.size(); ++i, ++token) {
            append(values, llama_get_embeddings_ith(handle->context, token), found.width);
        }
    }
    return found;
}

} // namespace ipyllama
