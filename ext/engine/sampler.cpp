#include "sampler.h"

#include <algorithm>
#include <cmath>

namespace ipyllama {
namespace {

// Below this the draw is certain, and dividing by the temperature would soon leave the range of a float.
constexpr float cold = 1e-9F;

void check(const SamplerOptions &options) {
    require(std::isfinite(options.temperature) && options.temperature >= 0, "temperature must be 0 or more");
    require(options.top_k >= 0, "top_k must be 0 or more");
    require(options.top_p >= 0 && options.top_p <= 1, "top_p must be 0 to 1");
    require(options.min_p >= 0 && options.min_p <= 1, "min_p must be 0 to 1");
    require(options.repeat_penalty >= 0.01F && options.repeat_penalty <= 100, "repeat_penalty must be 0.01 to 100");
    require(options.repeat_last_n >= 0 && options.repeat_last_n <= 1 << 20, "repeat_last_n must be 0 to 1048576");
}

} // namespace

// The order is llama.cpp's own: penalties, top-k, top-p, min-p, temperature, draw.
std::shared_ptr<Sampler::Handle> Sampler::make(const Model &model, const SamplerOptions &options) {
    check(options);
    auto handle = std::shared_ptr<Handle>(new Handle{
        model.handle(), {llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_sampler_free}, {}, {}});
    const int n_vocab = llama_vocab_n_tokens(handle->model->vocab());
    handle->candidates.resize(static_cast<std::size_t>(n_vocab));
    auto add = [&](llama_sampler *sampler) { llama_sampler_chain_add(handle->chain.get(), sampler); };
    if (options.repeat_penalty != 1.0F && options.repeat_last_n > 0) {
        add(llama_sampler_init_penalties(n_vocab, options.repeat_last_n, options.repeat_penalty, 0.0F, 0.0F));
    }
    if (options.temperature < cold) {
        add(llama_sampler_init_greedy());
        return handle;
    }
    if (options.top_k > 0) {
        add(llama_sampler_init_top_k(options.top_k));
    }
    if (options.top_p < 1.0F) {
        add(llama_sampler_init_top_p(options.top_p, 1));
    }
    if (options.min_p > 0.0F) {
        add(llama_sampler_init_min_p(options.min_p, 1));
    }
    add(llama_sampler_init_temp(options.temperature));
    add(llama_sampler_init_dist(options.seed));
    return handle;
}

Sampler::Sampler(const Model &model, const SamplerOptions &options)
    : owned_("this sampler is closed", make(model, options)) {}

llama_token Sampler::sample(const Sequence &sequence) {
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    auto &candidates = handle->candidates;
    sequence.with_logits([&](const float *logits, int n) {
        require(static_cast<std::size_t>(n) == candidates.size(), "the sampler was made for another vocabulary");
        for (int i = 0; i < n; ++i) {
            candidates[static_cast<std::size_t>(i)] = {i, logits[i], 0.0F};
        }
    });
    // Sorting by what cannot be compared is undefined.
    if (std::any_of(candidates.begin(), candidates.end(), [](const auto &c) { return !(c.logit < INFINITY); })) {
        throw Error(ErrorKind::decode, "no token can be chosen: the logits are not numbers");
    }
    llama_token_data_array choice = {candidates.data(), candidates.size(), -1, false};
    llama_sampler_apply(handle->chain.get(), &choice);
    if (choice.selected < 0 || static_cast<std::size_t>(choice.selected) >= choice.size) {
        throw Error(ErrorKind::decode, "no token could be chosen: the logits are not numbers");
    }
    const llama_token token = choice.data[choice.selected].id;
    llama_sampler_accept(handle->chain.get(), token);
    return token;
}

void Sampler::accept(const std::vector<llama_token> &tokens) {
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    for (const llama_token token : tokens) {
        handle->model->check_token(token);
        llama_sampler_accept(handle->chain.get(), token);
    }
}

void Sampler::reset() {
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    llama_sampler_reset(handle->chain.get());
}

void Sampler::close() {
    owned_.close();
}
bool Sampler::closed() const {
    return owned_.closed();
}

} // namespace ipyllama
