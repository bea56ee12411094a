#include "sequence.h"

#include <algorithm>

namespace ipyllama {
namespace {

llama_seq_id free_number(const std::vector<bool> &taken, std::optional<llama_seq_id> wanted) {
    const std::string last = std::to_string(taken.size() - 1);
    if (!wanted) {
        const auto found = std::find(taken.begin(), taken.end(), false);
        require(found != taken.end(), "all sequences of this context (0 to " + last +
                                          ") are in use: close one, or make the context with a larger n_seq_max");
        return static_cast<llama_seq_id>(found - taken.begin());
    }
    require(*wanted >= 0 && static_cast<std::size_t>(*wanted) < taken.size(),
            "sequence " + std::to_string(*wanted) + " does not exist (0 to " + last + ")");
    require(!taken[static_cast<std::size_t>(*wanted)],
            "sequence " + std::to_string(*wanted) + " is in use: close the other Sequence first");
    return *wanted;
}

template <typename T, typename Get> std::vector<T> collect(const std::vector<Cell> &cells, Get get) {
    std::vector<T> values(cells.size());
    std::transform(cells.begin(), cells.end(), values.begin(), get);
    return values;
}

// Logits belong to the last token: they go when the sequence changes, refused or not.
class ForgetsLogits {
  public:
    ForgetsLogits(ContextHandle &handle, llama_seq_id id)
        : handle_(handle), id_(id), positions_(collect<llama_pos>(handle.kv->cells(id), position)) {}
    ~ForgetsLogits() {
        if (collect<llama_pos>(handle_.kv->cells(id_), position) != positions_) {
            handle_.outputs.erase(id_);
        }
    }
    ForgetsLogits(const ForgetsLogits &) = delete;
    ForgetsLogits &operator=(const ForgetsLogits &) = delete;

  private:
    static llama_pos position(const Cell &cell) { return cell.pos; }

    ContextHandle &handle_;
    llama_seq_id id_;
    std::vector<llama_pos> positions_;
};

} // namespace

Slot::Slot(std::shared_ptr<Context> context_, std::optional<llama_seq_id> wanted) : context(std::move(context_)) {
    const auto handle = context->handle();
    const std::lock_guard lock(handle->mutex);
    handle->kv->memory();
    id = free_number(handle->taken, wanted);
    handle->taken[static_cast<std::size_t>(id)] = true;
}

Slot::~Slot() {
    try {
        const auto handle = context->handle();
        const std::lock_guard lock(handle->mutex);
        handle->kv->clear(id);
        handle->outputs.erase(id);
        handle->taken[static_cast<std::size_t>(id)] = false;
    } catch (const Error &) { // the context is closed: there is nothing to give back
    }
}

Sequence::Sequence(std::shared_ptr<Context> context, std::optional<llama_seq_id> id)
    : owned_("this sequence is closed", std::make_shared<Slot>(std::move(context), id)) {}

void Sequence::decode(std::vector<llama_token> tokens, Outputs outputs, std::optional<llama_pos> position) {
    require(!tokens.empty(), "there are no tokens to evaluate");
    locked([&](ContextHandle &handle, llama_seq_id id) {
        handle.decode({next_piece(handle, id, std::move(tokens), outputs, position)});
    });
}

void Sequence::remove(Positions range) {
    locked([&](ContextHandle &handle, llama_seq_id id) {
        const ForgetsLogits guard(handle, id);
        handle.kv->remove(id, range);
    });
}

void Sequence::trim(std::size_t n) {
    locked([&](ContextHandle &handle, llama_seq_id id) {
        const auto &cells = handle.kv->cells(id);
        require(n <= cells.size(), "cannot trim to " + std::to_string(n) + ": the sequence holds " +
                                       std::to_string(cells.size()) + " tokens");
        if (n == cells.size()) {
            return;
        }
        require(n == 0 || cells[n - 1].pos < cells[n].pos,
                "tokens " + std::to_string(n - 1) + " and " + std::to_string(n) + " have the same position");
        const ForgetsLogits guard(handle, id);
        handle.kv->remove(id, {cells[n].pos, INT32_MAX});
    });
}

void Sequence::copy(const Sequence &source, Positions range) {
    const auto from = source.slot();
    locked([&](ContextHandle &handle, llama_seq_id id) {
        require(from->context->handle().get() == &handle, "the sequences belong to different contexts");
        const ForgetsLogits guard(handle, id);
        handle.kv->share(from->id, id, range);
    });
}

std::shared_ptr<Sequence> Sequence::fork() const {
    auto twin = std::make_shared<Sequence>(context(), std::nullopt);
    twin->copy(*this, {});
    return twin;
}

void Sequence::add(Positions range, llama_pos delta) {
    locked([&](ContextHandle &handle, llama_seq_id id) {
        const ForgetsLogits guard(handle, id);
        handle.kv->add(id, range, delta);
    });
}

void Sequence::divide(Positions range, int divisor) {
    locked([&](ContextHandle &handle, llama_seq_id id) {
        const ForgetsLogits guard(handle, id);
        handle.kv->divide(id, range, divisor);
    });
}

void Sequence::keep() {
    locked([](ContextHandle &handle, llama_seq_id id) {
        handle.kv->keep(id);
        auto mine = handle.outputs.extract(id);
        handle.outputs.clear();
        if (!mine.empty()) {
            handle.outputs.insert(std::move(mine));
        }
    });
}

void Sequence::clear() {
    locked([](ContextHandle &handle, llama_seq_id id) {
        const ForgetsLogits guard(handle, id);
        handle.kv->clear(id);
    });
}

std::vector<llama_token> Sequence::tokens() const {
    return locked([](const ContextHandle &handle, llama_seq_id id) {
        return collect<llama_token>(handle.kv->cells(id), [](const Cell &cell) { return cell.token; });
    });
}

std::vector<llama_pos> Sequence::positions() const {
    return locked([](const ContextHandle &handle, llama_seq_id id) {
        return collect<llama_pos>(handle.kv->cells(id), [](const Cell &cell) { return cell.pos; });
    });
}

std::vector<std::uint64_t> Sequence::cells() const {
    return locked([](const ContextHandle &handle, llama_seq_id id) {
        return collect<std::uint64_t>(handle.kv->cells(id), [](const Cell &cell) { return cell.id; });
    });
}

std::size_t Sequence::size() const {
    return locked([](const ContextHandle &handle, llama_seq_id id) { return handle.kv->cells(id).size(); });
}

llama_pos Sequence::pos_min() const {
    return locked([](const ContextHandle &handle, llama_seq_id id) { return handle.kv->pos_min(id); });
}

llama_pos Sequence::pos_max() const {
    return locked([](const ContextHandle &handle, llama_seq_id id) { return handle.kv->pos_max(id); });
}

bool Sequence::has_logits() const {
    return locked([](const ContextHandle &handle, llama_seq_id id) { return handle.outputs.count(id) > 0; });
}

std::int32_t Sequence::last_row(const ContextHandle &handle, llama_seq_id id) {
    const auto found = handle.outputs.find(id);
    require(found != handle.outputs.end(), "there are no logits: evaluate a token first");
    return found->second.back();
}

float *Sequence::logits_row(const ContextHandle &handle, std::int32_t row) {
    float *logits = llama_get_logits_ith(handle.context, row);
    require(logits != nullptr, "this context computes no logits");
    return logits;
}

std::vector<float> Sequence::logits() const {
    return with_logits([](const float *values, int n) { return std::vector<float>(values, values + n); });
}

std::vector<float> Sequence::all_logits() const {
    return locked([](const ContextHandle &handle, llama_seq_id id) {
        last_row(handle, id);
        std::vector<float> all;
        for (const std::int32_t row : handle.outputs.at(id)) {
            const float *values = logits_row(handle, row);
            all.insert(all.end(), values, values + llama_vocab_n_tokens(handle.model->vocab()));
        }
        return all;
    });
}

std::vector<float> Sequence::embeddings() const {
    return locked([](const ContextHandle &handle, llama_seq_id id) {
        const float *values = llama_get_embeddings_ith(handle.context, last_row(handle, id));
        require(values != nullptr, "this context gives no embeddings of tokens: make it with embeddings=True and "
                                   "pooling='none'");
        return std::vector<float>(values, values + llama_model_n_embd_out(handle.model->model));
    });
}

} // namespace ipyllama
