#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ipyllama {
namespace {

void check_numbers(const float *logits, std::size_t n) {
    bool all = true; // without a way out in between, which would keep the compiler from taking many at once
    for (std::size_t i = 0; i < n; ++i) {
        all &= logits[i] < INFINITY;
    }
    if (!all) {
        throw Error(ErrorKind::decode, "no token can be chosen: the logits are not numbers");
    }
}

std::vector<float> softmax(const std::vector<float> &logits) {
    const double top = *std::max_element(logits.begin(), logits.end());
    std::vector<double> weights(logits.size());
    std::transform(logits.begin(), logits.end(), weights.begin(), [top](float logit) { return std::exp(logit - top); });
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<float> found(logits.size());
    std::transform(weights.begin(), weights.end(), found.begin(),
                   [sum](double weight) { return static_cast<float>(weight / sum); });
    return found;
}

} // namespace

Sampler::Sampler(std::shared_ptr<Handle> handle) : owned_("this sampler is closed", std::move(handle)) {}

Sampler::Sampler(SamplerPart part) : Sampler(std::make_shared<Handle>()) {
    owned_.get()->parts.push_back(std::move(part));
}

std::shared_ptr<Sampler> Sampler::chain(const std::vector<std::shared_ptr<Sampler>> &parts) {
    require(!parts.empty(), "a chain needs at least one sampler");
    auto made = std::make_shared<Handle>();
    made->is_chain = true;
    int n_vocab = 0;
    for (const auto &sampler : parts) {
        require(sampler != nullptr, "the parts of a chain are samplers: None is not one");
        const auto handle = sampler->owned_.get();
        const std::lock_guard lock(handle->mutex);
        for (const SamplerPart &part : handle->parts) {
            const std::string last =
                made->parts.empty() || !made->parts.back().chooses() ? "" : made->parts.back().name();
            require(last.empty(),
                    last + " chooses a token: it must be the last of a chain, and " + part.name() + " comes after it");
            require(n_vocab == 0 || part.n_vocab() == 0 || part.n_vocab() == n_vocab,
                    part.name() + " was made for another vocabulary than the samplers before it");
            n_vocab = std::max(n_vocab, part.n_vocab());
            made->parts.push_back(part.clone());
        }
    }
    return std::shared_ptr<Sampler>(new Sampler(std::move(made)));
}

llama_token_data_array Sampler::apply_locked(Handle &handle, const float *logits, std::size_t n) {
    for (const SamplerPart &part : handle.parts) {
        require(part.n_vocab() == 0 || static_cast<std::size_t>(part.n_vocab()) == n,
                part.name() + " was made for another vocabulary");
    }
    check_numbers(logits, n); // sorting by what cannot be compared is undefined
    auto &candidates = handle.candidates;
    candidates.resize(n);
    std::size_t n_possible = 0;
    for (std::size_t i = 0; i < n; ++i) { // each is written, and stays if it can be chosen: there is no branch
        candidates[n_possible] = {static_cast<llama_token>(i), logits[i], 0.0F};
        n_possible += static_cast<std::size_t>(logits[i] > -INFINITY);
    }
    if (n_possible == 0) {
        throw Error(ErrorKind::decode, "no token can be chosen: every logit is minus infinity");
    }
    llama_token_data_array left = {candidates.data(), n_possible, -1, false};
    for (SamplerPart &part : handle.parts) {
        part.apply(left);
    }
    return left;
}

void Sampler::accept_locked(Handle &handle, llama_token token) {
    for (SamplerPart &part : handle.parts) { // all are asked before one takes note
        part.check(token);
    }
    require(token >= 0, "token " + std::to_string(token) + " is in no vocabulary");
    for (SamplerPart &part : handle.parts) {
        part.accept(token);
    }
}

llama_token Sampler::sample(const Sequence &sequence) {
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    require(handle->parts.back().chooses(), "the last sampler, " + handle->parts.back().name() +
                                                ", only filters: end the chain with greedy, dist, mirostat, "
                                                "mirostat_v2 or adaptive_p");
    const auto logits =
        sequence.with_logits([](const float *values, int n) { return std::vector<float>(values, values + n); });
    const auto left = apply_locked(*handle, logits.data(), logits.size());
    const llama_token token = left.data[left.selected].id;
    accept_locked(*handle, token);
    return token;
}

Candidates Sampler::apply(const std::vector<float> &logits) {
    require(!logits.empty(), "there are no logits");
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    const auto left = apply_locked(*handle, logits.data(), logits.size());
    Candidates found;
    for (std::size_t i = 0; i < left.size; ++i) {
        found.tokens.push_back(left.data[i].id);
        found.logits.push_back(left.data[i].logit);
    }
    found.probabilities = softmax(found.logits);
    if (left.selected >= 0) {
        found.selected = left.data[left.selected].id;
    }
    return found;
}

void Sampler::accept(const std::vector<llama_token> &tokens) {
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    for (const llama_token token : tokens) {
        accept_locked(*handle, token);
    }
}

void Sampler::reset() {
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    for (SamplerPart &part : handle->parts) {
        part.reset();
    }
}

std::shared_ptr<Sampler> Sampler::clone() const {
    const auto handle = owned_.get();
    const std::lock_guard lock(handle->mutex);
    auto made = std::make_shared<Handle>();
    made->is_chain = handle->is_chain;
    for (const SamplerPart &part : handle->parts) {
        made->parts.push_back(part.clone());
    }
    return std::shared_ptr<Sampler>(new Sampler(std::move(made)));
}

std::string Sampler::name() const {
    const auto handle = owned_.get();
    return handle->is_chain ? "chain" : handle->parts.front().name();
}

std::vector<std::string> Sampler::names() const {
    const auto handle = owned_.get();
    std::vector<std::string> found;
    for (const SamplerPart &part : handle->parts) {
        found.push_back(part.name());
    }
    return found;
}

std::optional<std::uint32_t> Sampler::seed() const {
    const auto handle = owned_.get();
    const auto &parts = handle->parts;
    const auto found =
        std::find_if(parts.rbegin(), parts.rend(), [](const auto &part) { return part.seed().has_value(); });
    return found == parts.rend() ? std::nullopt : found->seed();
}

std::pair<std::vector<llama_token>, std::vector<float>> top_logprobs(const Sequence &sequence, int k) {
    const auto logits =
        sequence.with_logits([](const float *values, int n) { return std::vector<float>(values, values + n); });
    require(k >= 1 && static_cast<std::size_t>(k) <= logits.size(), "k must be 1 to " + std::to_string(logits.size()));
    check_numbers(logits.data(), logits.size());
    const double top = *std::max_element(logits.begin(), logits.end());
    if (top == -INFINITY) {
        throw Error(ErrorKind::decode, "there are no probabilities: every logit is minus infinity");
    }
    double sum = 0;
    for (const float logit : logits) {
        sum += std::exp(logit - top);
    }
    std::vector<llama_token> tokens(logits.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    auto logit_of = [&](llama_token token) { return logits[static_cast<std::size_t>(token)]; };
    std::partial_sort(tokens.begin(), tokens.begin() + k, tokens.end(), [&](llama_token a, llama_token b) {
        return logit_of(a) != logit_of(b) ? logit_of(a) > logit_of(b) : a < b;
    });
    tokens.resize(static_cast<std::size_t>(k));
    std::vector<float> logprobs(tokens.size());
    std::transform(tokens.begin(), tokens.end(), logprobs.begin(),
                   [&](llama_token token) { return static_cast<float>(logit_of(token) - top - std::log(sum)); });
    return {std::move(tokens), std::move(logprobs)};
}

} // namespace ipyllama
