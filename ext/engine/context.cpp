#include "context.h"

#include <algorithm>
#include <numeric>

#include "batch.h"
#include "checks.h"
#include "log.h"
#include "state.h"

namespace ipyllama {
namespace {

constexpr std::uint32_t max_context = 1U << 24;

bool on_abort_check(void *user_data) {
    return static_cast<std::atomic<bool> *>(user_data)->load();
}

ggml_type cache_type(const std::string &name) {
    static const std::map<std::string, ggml_type> types = {
        {"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},   {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0},
        {"q5_1", GGML_TYPE_Q5_1}, {"q5_0", GGML_TYPE_Q5_0}, {"q4_1", GGML_TYPE_Q4_1}, {"q4_0", GGML_TYPE_Q4_0},
    };
    const auto found = types.find(name);
    require(found != types.end(), "unknown KV type '" + name + "': use f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0");
    return found->second;
}

enum llama_pooling_type pooling_from(const std::string &name) {
    static const std::map<std::string, enum llama_pooling_type> types = {
        {"unspecified", LLAMA_POOLING_TYPE_UNSPECIFIED},
        {"none", LLAMA_POOLING_TYPE_NONE},
        {"mean", LLAMA_POOLING_TYPE_MEAN},
        {"cls", LLAMA_POOLING_TYPE_CLS},
        {"last", LLAMA_POOLING_TYPE_LAST},
        {"rank", LLAMA_POOLING_TYPE_RANK},
    };
    const auto found = types.find(name);
    require(found != types.end(), "unknown pooling '" + name + "': use none, mean, cls, last, rank or unspecified");
    return found->second;
}

void check_threads(int n_threads) {
    require(n_threads > 0 && n_threads <= GGML_MAX_N_THREADS,
            "n_threads must be 1 to " + std::to_string(GGML_MAX_N_THREADS));
}

void check_options(const ContextOptions &options) {
    const auto most_sequences = llama_max_parallel_sequences() - 1; // one is ours, for copies
    require(options.n_ctx > 0 && options.n_ctx <= max_context, "n_ctx must be 1 to " + std::to_string(max_context));
    require(options.n_batch > 0 && options.n_batch <= max_context, "n_batch must be at least 1");
    require(options.n_ubatch <= options.n_batch, "n_ubatch must not be over n_batch");
    require(options.n_seq_max > 0 && options.n_seq_max <= most_sequences,
            "n_seq_max must be 1 to " + std::to_string(most_sequences));
    check_threads(options.n_threads);
    check_threads(options.n_threads_batch == 0 ? 1 : options.n_threads_batch);
    require(options.flash_attention >= -1 && options.flash_attention <= 1, "flash_attention must be -1, 0 or 1");
    require(options.rope_freq_base >= 0 && options.rope_freq_base < 1e12F, "rope_freq_base must be 0 or more");
    require(options.rope_freq_scale >= 0 && options.rope_freq_scale < 1e6F, "rope_freq_scale must be 0 or more");
}

// llama.cpp sizes its buffers with a batch of n_ubatch tokens, rounded up to a multiple of n_seq_max; where it has to
// round, taking the mean fails. More sequences than asked for cost next to nothing.
void make_room_for_means(llama_context_params &params) {
    params.n_ubatch = std::min(params.n_ubatch, params.n_ctx);
    for (auto n = params.n_seq_max; n <= llama_max_parallel_sequences(); ++n) {
        if (params.n_ubatch % n == 0) {
            params.n_seq_max = n;
            return;
        }
    }
    require(params.n_ubatch > params.n_seq_max,
            "n_ubatch and n_ctx must be over n_seq_max where embeddings are pooled");
    params.n_ubatch -= params.n_ubatch % params.n_seq_max;
}

llama_context_params to_params(const ContextOptions &options, std::atomic<bool> &abort) {
    check_options(options);
    auto params = llama_context_default_params();
    params.n_ctx = options.n_ctx;
    params.n_batch = options.n_batch;
    params.n_ubatch = options.n_ubatch == 0 ? options.n_batch : options.n_ubatch;
    params.n_seq_max = options.n_seq_max + 1;
    params.n_threads = options.n_threads;
    params.n_threads_batch = options.n_threads_batch == 0 ? options.n_threads : options.n_threads_batch;
    params.flash_attn_type = static_cast<llama_flash_attn_type>(options.flash_attention);
    params.type_k = cache_type(options.type_k);
    params.type_v = cache_type(options.type_v);
    params.swa_full = options.swa_full;
    params.offload_kqv = options.offload_kqv;
    params.kv_unified = true;
    params.embeddings = options.embeddings;
    params.pooling_type = pooling_from(options.pooling);
    params.rope_freq_base = options.rope_freq_base;
    params.rope_freq_scale = options.rope_freq_scale;
    params.abort_callback = on_abort_check;
    params.abort_callback_data = &abort;
    if (options.embeddings && options.pooling != "none") {
        make_room_for_means(params);
    }
    return params;
}

[[noreturn]] void fail(int status, std::uint64_t mark, bool small_window) {
    if (status == 2) {
        throw Error(ErrorKind::aborted, "the step was aborted");
    }
    if (status == 1) {
        throw Error(ErrorKind::decode,
                    std::string("no room in KV memory for this batch: ask for a larger n_ctx") +
                        (small_window ? ", close forks (their windows stay), or use swa_full=True" : ""));
    }
    throw Error(ErrorKind::decode, "llama.cpp could not evaluate the batch: " + log::errors_since(mark));
}

// What llama_batch points to.
struct Arrays {
    std::vector<llama_token> tokens;
    std::vector<llama_pos> positions;
    std::vector<std::int32_t> counts;
    std::vector<llama_seq_id> ids;
    std::vector<llama_seq_id *> id_pointers;
    std::vector<std::int8_t> outputs;

    explicit Arrays(const std::vector<Piece> &pieces) {
        for (const Piece &piece : pieces) {
            tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
            positions.insert(positions.end(), piece.positions.begin(), piece.positions.end());
            ids.insert(ids.end(), piece.tokens.size(), piece.id);
            outputs.insert(outputs.end(), piece.tokens.size(), piece.outputs == Outputs::all ? 1 : 0);
            outputs.back() = piece.outputs == Outputs::none ? 0 : 1;
        }
        counts.assign(tokens.size(), 1);
        std::transform(ids.begin(), ids.end(), std::back_inserter(id_pointers), [](llama_seq_id &id) { return &id; });
    }

    llama_batch batch() {
        return {static_cast<std::int32_t>(tokens.size()),
                tokens.data(),
                nullptr,
                positions.data(),
                counts.data(),
                id_pointers.data(),
                outputs.data()};
    }
};

} // namespace

ContextHandle::ContextHandle(std::shared_ptr<ModelHandle> model_, const ContextOptions &options)
    : model(std::move(model_)), taken(options.n_seq_max, false), swa_full(options.swa_full),
      embeddings(options.embeddings), n_positions_(model->n_positions()) {
    auto params = to_params(options, abort);
    if (llama_model_n_swa(model->model) > 0) {
        // llama_kv_cache::prepare lets the cells that fall out of the window in a later micro-batch go before the
        // first is evaluated, which still sees them. With one micro-batch in a step there is no later one.
        params.n_ubatch = params.n_batch;
    }
    const auto pooling = options.pooling == "unspecified" ? model->pooling() : options.pooling;
    require(!options.embeddings || pooling != "rank" || model->n_cls_out() > 0,
            "pooling 'rank' needs a model with a classifier: this one has none");
    const auto mark = log::next_number();
    {
        const ChecksThrow checks; // upstream catches what they throw
        context = llama_init_from_model(model->model, params);
    }
    if (context == nullptr) {
        const std::string why = log::errors_since(mark);
        if (!why.empty() && why.find("alloc") == std::string::npos) { // options that do not suit this model
            throw Error(ErrorKind::bad_argument, "llama.cpp cannot make this context: " + why);
        }
        throw Error(ErrorKind::not_enough_memory, "llama.cpp cannot make a context of " +
                                                      std::to_string(options.n_ctx) + " tokens (" + why +
                                                      "). Ask for a smaller n_ctx.");
    }
    kv.emplace(context, model->model, llama_n_seq_max(context));
}

void ContextHandle::check_steps_to(llama_pos last) const {
    require(!llama_model_has_encoder(model->model), "models with an encoder and a decoder are not supported");
    require(last < n_positions_,
            "this model has learned " + std::to_string(n_positions_) + " positions, and no more follow");
}

void ContextHandle::check(const std::vector<Piece> &pieces) const {
    const auto n_batch = llama_n_batch(context);
    const auto n_ctx = llama_n_ctx(context);
    const auto n = std::accumulate(pieces.begin(), pieces.end(), std::size_t{0},
                                   [](std::size_t sum, const Piece &piece) { return sum + piece.tokens.size(); });
    require(n > 0, "there are no tokens to evaluate");
    require(n <= n_batch, std::to_string(n) + " tokens in one step: at most " + std::to_string(n_batch) + " (n_batch)");
    require(llama_get_causal_attn(context) || n <= llama_n_ubatch(context),
            "without causal attention a step holds at most " + std::to_string(llama_n_ubatch(context)) +
                " tokens (n_ubatch)");
    for (const Piece &piece : pieces) {
        const auto &cells = kv->cells(piece.id);
        require(cells.empty() || piece.positions.front() == kv->next(piece.id),
                "the sequence goes on at position " + std::to_string(kv->next(piece.id)));
        require(cells.size() + piece.tokens.size() <= n_ctx,
                "the context of " + std::to_string(n_ctx) + " tokens is full");
        check_steps_to(piece.positions.back());
        std::for_each(piece.tokens.begin(), piece.tokens.end(), [&](llama_token token) { model->check_token(token); });
    }
    if (abort) {
        throw Error(ErrorKind::aborted, "the abort flag is set");
    }
}

int ContextHandle::run(const std::vector<Piece> &pieces) {
    Arrays arrays(pieces);
    outputs.clear();
    const int status = llama_decode(context, arrays.batch());
    kv->shift_pending = kv->shift_pending && status == -1; // every other answer comes after the shift
    return status;
}

void ContextHandle::decode(const std::vector<Piece> &pieces) {
    kv->memory();
    check(pieces);
    apply_shift();
    const auto mark = log::next_number();
    const int status = run(pieces);
    if (status == 0) {
        std::int32_t row = 0;
        for (const Piece &piece : pieces) {
            kv->append(piece.id, piece.tokens, piece.positions);
            const auto n = static_cast<std::int32_t>(piece.tokens.size());
            for (std::int32_t i = 0; i < n; ++i) {
                if (piece.outputs == Outputs::all || (piece.outputs == Outputs::last && i == n - 1)) {
                    outputs[piece.id].push_back(row + i);
                }
            }
            row += n;
        }
        return;
    }
    const bool started = status != 1 && status != -1;
    if (started && kv->recurrent() && pieces.size() > 1) {
        // The step puts the states of its sequences side by side, and those of others out of the way: any may be on
        // its way to another cell.
        kv->clear_all(false);
    }
    for (const Piece &piece : pieces) {
        kv->reconcile(piece.id, piece.tokens, piece.positions);
    }
    fail(status, mark, llama_model_n_swa(model->model) > 0 && !swa_full);
}

void ContextHandle::encode(const std::vector<Piece> &pieces) {
    check(pieces);
    const auto mark = log::next_number();
    if (const int status = run(pieces)) { // llama_decode encodes where there is no memory
        fail(status, mark, false);
    }
}

std::vector<Piece> ContextHandle::one_token() const {
    return {{scratch(), {std::max(llama_vocab_bos(model->vocab()), 0)}, {0}, Outputs::none}};
}

void ContextHandle::apply_shift() {
    if (!kv->shift_pending) {
        return;
    }
    // llama.cpp turns the keys at the start of a step, room for the token or not. An abort while it does would leave
    // some layers turned and others not, so it has to wait.
    llama_set_abort_callback(context, nullptr, nullptr);
    run(one_token());
    llama_set_abort_callback(context, on_abort_check, &abort);
    kv->clear(scratch());
    if (kv->shift_pending) {
        throw Error(ErrorKind::decode, "llama.cpp could not move the positions");
    }
}

const StateLayout &ContextHandle::layout() {
    if (!layout_) {
        kv->memory();
        apply_shift();
        llama_seq_id id = 0;
        while (id < scratch() && kv->cells(id).empty()) {
            ++id;
        }
        if (id == scratch()) {
            decode(one_token());
        } else { // the last cell will do, and costs no step
            const auto last = kv->cells(id).back().pos;
            kv->lend(id, scratch(), {last, last + 1});
        }
        const auto state = copy_out(*this, scratch(), 0);
        const auto partial = copy_out(*this, scratch(), LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        kv->clear(scratch());
        layout_ = StateLayout::learn(state.bytes(), partial.bytes());
    }
    return *layout_;
}

Piece next_piece(const ContextHandle &handle, llama_seq_id id, std::vector<llama_token> tokens, Outputs outputs,
                 std::optional<llama_pos> position) {
    const llama_pos first = position.value_or(handle.kv->next(id));
    require(first >= 0 && first <= INT32_MAX / 2, "positions must be 0 to " + std::to_string(INT32_MAX / 2));
    std::vector<llama_pos> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), first);
    return {id, std::move(tokens), std::move(positions), outputs};
}

Context::Context(const Model &model, const ContextOptions &options)
    : owned_("this context is closed", std::make_shared<ContextHandle>(model.handle(), options)) {}

void Context::close() {
    if (const auto handle = owned_.close()) {
        handle->abort = true;
    }
}

void Context::decode(const Batch &batch) {
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    handle->decode(batch.pieces(*handle));
}

void Context::set_threads(int n_threads, int n_threads_batch) {
    check_threads(n_threads);
    check_threads(n_threads_batch);
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    llama_set_n_threads(handle->context, n_threads, n_threads_batch);
}

std::uint32_t Context::n_ctx() const {
    return llama_n_ctx(owned_.get()->context);
}
std::uint32_t Context::n_batch() const {
    return llama_n_batch(owned_.get()->context);
}
std::uint32_t Context::n_ubatch() const {
    return llama_n_ubatch(owned_.get()->context);
}
std::uint32_t Context::n_seq_max() const {
    return static_cast<std::uint32_t>(owned_.get()->taken.size());
}
int Context::n_threads() const {
    return llama_n_threads(owned_.get()->context);
}
int Context::n_threads_batch() const {
    return llama_n_threads_batch(owned_.get()->context);
}

} // namespace ipyllama
