#include "media_step.h"

#include <algorithm>
#include <cmath>

#include "log.h"

namespace ipyllama {
namespace {

// Some projectors make tokens that see each other both ways.
class BothWays {
  public:
    BothWays(llama_context *context, bool wanted)
        : context_(context), before_(llama_get_causal_attn(context)), wanted_(wanted) {
        if (wanted_) {
            llama_set_causal_attn(context_, false);
        }
    }
    ~BothWays() {
        if (wanted_) {
            llama_set_causal_attn(context_, before_);
        }
    }
    BothWays(const BothWays &) = delete;
    BothWays &operator=(const BothWays &) = delete;

  private:
    llama_context *context_;
    bool before_;
    bool wanted_;
};

// The positions of a chunk, token by token: one number each, or four for M-RoPE.
struct Place {
    llama_pos t, y, x, z;
};

std::vector<Place> places(const Chunk &chunk, llama_pos first) {
    std::vector<Place> found;
    const auto *image = mtmd_input_chunk_get_tokens_image(chunk.get()); // null for sounds
    for (std::size_t i = 0; i < chunk.n_tokens(); ++i) {
        const auto plain = first + static_cast<llama_pos>(i);
        if (image == nullptr) {
            found.push_back({plain, plain, plain, plain});
        } else {
            const auto at = mtmd_image_tokens_get_decoder_pos(image, first, i);
            found.push_back({static_cast<llama_pos>(at.t), static_cast<llama_pos>(at.y), static_cast<llama_pos>(at.x),
                             static_cast<llama_pos>(at.z)});
        }
    }
    return found;
}

int decode(llama_context *context, llama_seq_id id, const float *rows, const std::vector<Place> &places, bool four) {
    const std::size_t n = places.size();
    std::vector<llama_pos> positions; // all first numbers, then all second ones ...
    for (const auto number : {&Place::t, &Place::y, &Place::x, &Place::z}) {
        std::transform(places.begin(), places.end(), std::back_inserter(positions),
                       [number](const Place &place) { return place.*number; });
        if (!four) {
            break;
        }
    }
    std::vector<std::int32_t> counts(n, 1);
    std::vector<llama_seq_id *> ids(n, &id);
    std::vector<std::int8_t> outputs(n, 0);
    outputs.back() = 1;
    return llama_decode(context, {static_cast<std::int32_t>(n), nullptr, const_cast<float *>(rows), positions.data(),
                                  counts.data(), ids.data(), outputs.data()});
}

void step(ContextHandle &handle, llama_seq_id id, const float *rows, const std::vector<Place> &places, bool four) {
    if (handle.abort) {
        throw Error(ErrorKind::aborted, "the abort flag is set");
    }
    std::vector<llama_pos> positions(places.size());
    std::transform(places.begin(), places.end(), positions.begin(), [](const Place &place) { return place.t; });
    const std::vector<llama_token> tokens(places.size(), LLAMA_TOKEN_NULL);
    const auto mark = log::next_number();
    handle.outputs.clear();
    const int status = decode(handle.context, id, rows, places, four);
    handle.kv->shift_pending = handle.kv->shift_pending && status == -1; // every other answer comes after the shift
    if (status == 0) {
        handle.kv->append(id, tokens, positions);
        handle.outputs[id] = {static_cast<std::int32_t>(places.size()) - 1};
        return;
    }
    handle.kv->reconcile(id, tokens, positions);
    if (status == 2) {
        throw Error(ErrorKind::aborted, "the step was aborted");
    }
    throw Error(ErrorKind::decode, status == 1 ? "no room in KV memory for this chunk: ask for a larger n_ctx"
                                               : "llama.cpp could not evaluate the chunk: " + log::errors_since(mark));
}

// After a step that failed, to the length that the sequence had before the chunk.
void take_back(ContextHandle &handle, llama_seq_id id, std::size_t n_before) {
    const auto &cells = handle.kv->cells(id);
    if (cells.size() <= n_before) {
        return;
    }
    handle.outputs.erase(id);
    try {
        handle.kv->remove(id, {cells[n_before].pos, INT32_MAX});
    } catch (const Error &) {
        handle.kv->clear(id);
    }
}

void check(const ContextHandle &handle, llama_seq_id id, const Chunk &chunk, const Rows &rows, bool both_ways) {
    const auto n = chunk.n_tokens();
    const auto n_embd = static_cast<std::size_t>(llama_model_n_embd_inp(handle.model->model));
    require(rows.n_rows == n && rows.n_embd == n_embd,
            "the embeddings of this chunk have the shape (" + std::to_string(n) + ", " + std::to_string(n_embd) + ")");
    require(std::all_of(rows.data, rows.data + n * n_embd, [](float x) { return std::isfinite(x); }),
            "the embeddings hold values that are not numbers");
    const auto n_ctx = llama_n_ctx(handle.context);
    require(handle.kv->cells(id).size() + n <= n_ctx, "the context of " + std::to_string(n_ctx) + " tokens is full");
    const auto step = std::min(llama_n_batch(handle.context), llama_n_ubatch(handle.context));
    require(!both_ways || n <= step, "the " + std::to_string(n) +
                                         " tokens of this image see each other: make the context with n_batch and "
                                         "n_ubatch of as many");
}

} // namespace

void evaluate(const Multimodal &projector, const Sequence &sequence, const Chunk &chunk, const Rows &rows) {
    const auto held = projector.handle();
    const auto *context = held->context.get();
    require(chunk.comes_from(held), "this chunk was made by another projector: tokenize with this one");
    require(chunk.type() != MTMD_INPUT_CHUNK_TYPE_TEXT, "this chunk is text: decode its tokens");
    const bool both_ways = mtmd_decode_use_non_causal(context, chunk.get());
    const bool four = mtmd_decode_use_mrope(context);
    const auto slot = sequence.slot();
    const auto handle = slot->context->handle();
    require(handle->model == held->model, "the projector was loaded for another model: load it for this one");
    const std::lock_guard lock(handle->mutex);
    handle->kv->memory();
    check(*handle, slot->id, chunk, rows, both_ways);
    const llama_pos first = handle->kv->next(slot->id);
    handle->check_steps_to(first + chunk.n_positions() - 1);
    const auto all = places(chunk, first);
    const auto n_before = handle->kv->cells(slot->id).size();
    const BothWays attention(handle->context, both_ways);
    const std::size_t n_batch = llama_n_batch(handle->context);
    try {
        for (std::size_t done = 0; done < all.size(); done += n_batch) {
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>(done);
            const auto n = static_cast<std::ptrdiff_t>(std::min(n_batch, all.size() - done));
            step(*handle, slot->id, rows.data + done * rows.n_embd, {begin, begin + n}, four);
        }
    } catch (...) {
        take_back(*handle, slot->id, n_before);
        throw;
    }
    handle->kv->reach(slot->id, first + chunk.n_positions());
}

} // namespace ipyllama
