#include "context.h"

#include <algorithm>
#include <numeric>
#ifndef _WIN32
#include <unistd.h>
#endif

#include "batch.h"
#include "checks.h"
#include "log.h"
#include "state.h"

namespace ipyllama {
namespace {

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

long this_process() {
#ifdef _WIN32
    return 0; // knows no fork
#else
    return static_cast<long>(getpid());
#endif
}

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
    : owned_("this context is closed", std::make_shared<ContextHandle>(model.handle(), options)),
      process_(this_process()) {}

std::shared_ptr<ContextHandle> Context::handle() const {
    if (process_ != this_process()) {
        throw Error(ErrorKind::closed, "this context is closed to a forked process: make one of its own there");
    }
    return owned_.get();
}

void Context::close() {
    if (const auto handle = owned_.close()) {
        handle->abort = true;
    }
}

void Context::decode(const Batch &batch) {
    const auto handle = this->handle();
    const std::lock_guard lock(handle->mutex);
    handle->decode(batch.pieces(*handle));
}

void Context::set_threads(int n_threads, int n_threads_batch) {
    check_threads(n_threads);
    check_threads(n_threads_batch);
    const auto handle = this->handle();
    const std::lock_guard lock(handle->mutex);
    llama_set_n_threads(handle->context, n_threads, n_threads_batch);
}

std::uint32_t Context::n_ctx() const {
    return llama_n_ctx(handle()->context);
}
std::uint32_t Context::n_batch() const {
    return llama_n_batch(handle()->context);
}
std::uint32_t Context::n_ubatch() const {
    return llama_n_ubatch(handle()->context);
}
std::uint32_t Context::n_seq_max() const {
    return static_cast<std::uint32_t>(handle()->taken.size());
}
int Context::n_vocab() const {
    return llama_vocab_n_tokens(handle()->model->vocab());
}
int Context::n_threads() const {
    return llama_n_threads(handle()->context);
}
int Context::n_threads_batch() const {
    return llama_n_threads_batch(handle()->context);
}

} // namespace ipyllama
