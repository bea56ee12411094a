// Calling llama.cpp's samplers so that none of them meets what it could not survive.
#include "sampler_part.h"

#include <algorithm>
#include <cmath>

#include "budget.h"
#include "checks.h"
#include "deep_stack.h"

namespace ipyllama {
namespace {

constexpr float huge_logit = 1e8F; // upstream sorts logits by an integer made of them: beyond this it overflows
constexpr float vanishing = 70.0F; // e to the minus this is still a float, even after dividing by a vocabulary's sum
constexpr std::size_t most_infill = 1024; // it compares all pairs
constexpr std::size_t grammar_stack = 32U << 20U;
constexpr std::size_t stack_per_byte = 4096; // std::regex calls itself for every character that it looks at
constexpr std::size_t shallow_bytes = 128;
constexpr std::size_t most_bytes = 1U << 18;
// Upstream keeps every way in which a grammar can have made the text, and compares each with all others: where
// alternatives begin alike there may soon be millions. These allow some ten thousand, about a second.
constexpr std::uint64_t accept_budget = 200000;
constexpr std::uint64_t apply_budget = 1000000;

template <typename Keep> void keep_if(llama_token_data_array &candidates, Keep keep) {
    auto *end = std::remove_if(candidates.data, candidates.data + candidates.size,
                               [&](const llama_token_data &candidate) { return !keep(candidate); });
    candidates.size = static_cast<std::size_t>(end - candidates.data);
}

float largest(const llama_token_data_array &candidates) {
    float found = -INFINITY;
    for (std::size_t i = 0; i < candidates.size; ++i) {
        found = std::max(found, candidates.data[i].logit);
    }
    return found;
}

} // namespace

int SamplerPart::n_vocab() const {
    return model_ ? llama_vocab_n_tokens(model_->vocab()) : 0;
}

void SamplerPart::require_usable() const {
    if (broken_) {
        throw Error(ErrorKind::bad_grammar, "this sampler was left half-way by an earlier error: reset() it first");
    }
}

void SamplerPart::guard(const std::function<void()> &call, std::uint64_t allocations) {
    require_usable();
    const AllocationBudget budget(is_grammar() ? allocations : AllocationBudget::unlimited);
    try {
        const ChecksThrow checks;
        call();
    } catch (const Error &) { // ours, from before the call
        throw;
    } catch (const std::bad_alloc &) {
        broken_ = true;
        if (!budget.spent()) {
            throw;
        }
        throw Error(ErrorKind::bad_grammar, "the grammar can read this text in too many ways: let alternatives begin "
                                            "differently, as in  sum ::= term (\"+\" term | \"-\" term)*");
    } catch (const std::exception &error) {
        broken_ = true;
        throw Error(is_grammar() ? ErrorKind::bad_grammar : ErrorKind::decode,
                    name_ + " failed, reset() it: " + error.what());
    }
}

// Brings candidates into the range that upstream's arithmetic holds for, where it does not change what is chosen.
void SamplerPart::prepare(llama_token_data_array &candidates) const {
    if (kind_ == SamplerKind::plain || is_grammar()) {
        return;
    }
    auto *begin = candidates.data;
    auto *end = begin + candidates.size;
    if (!candidates.sorted &&
        std::any_of(begin, end, [](const auto &candidate) { return std::fabs(candidate.logit) > huge_logit; })) {
        std::stable_sort(begin, end, [](const auto &a, const auto &b) { return a.logit > b.logit; });
        candidates.sorted = true;
    }
    if (kind_ == SamplerKind::infill) {
        require(candidates.size <= most_infill,
                "infill compares all pairs: put a top_k of at most " + std::to_string(most_infill) + " before it");
    }
    const float top = largest(candidates);
    if (kind_ == SamplerKind::logarithmic) { // that of a probability of zero would spoil the sums
        keep_if(candidates, [&](const auto &candidate) { return candidate.logit >= top - vanishing; });
    }
    if (kind_ == SamplerKind::temp_ext) { // it may come out near zero: only zero divided by that stays finite
        std::for_each(begin, end, [&](auto &candidate) { candidate.logit -= top; });
    }
}

void SamplerPart::settle(llama_token_data_array &candidates) const {
    const auto *end = candidates.data + candidates.size;
    if (std::any_of(static_cast<const llama_token_data *>(candidates.data), end,
                    [](const auto &candidate) { return !(candidate.logit < INFINITY); })) {
        throw Error(ErrorKind::decode, "no token can be chosen: after " + name_ + " the logits are not numbers");
    }
    if (chooses_) {
        if (candidates.selected < 0 || static_cast<std::size_t>(candidates.selected) >= candidates.size) {
            throw Error(ErrorKind::decode, "no token could be chosen by " + name_);
        }
        return;
    }
    keep_if(candidates, [](const auto &candidate) { return candidate.logit > -INFINITY; });
    if (candidates.size == 0 && is_grammar()) {
        throw Error(ErrorKind::bad_grammar, "the grammar allows no token here: it is complete, or nothing that is "
                                            "left to choose from fits it");
    }
    if (candidates.size == 0) {
        throw Error(ErrorKind::decode, "no token can be chosen: " + name_ + " left none");
    }
}

void SamplerPart::apply(llama_token_data_array &candidates) {
    require_usable();
    prepare(candidates);
    if (kind_ == SamplerKind::adaptive_p) {
        n_draws_ += candidates.size > 1 ? 1 : 0;
        pending_ = true;
    }
    guard([&] { llama_sampler_apply(native_.get(), &candidates); }, apply_budget + candidates.size);
    settle(candidates);
}

bool SamplerPart::fits(llama_token token) {
    llama_token_data candidate = {token, 0.0F, 0.0F};
    llama_token_data_array one = {&candidate, 1, -1, false};
    guard([&] { llama_sampler_apply(native_.get(), &one); }, apply_budget);
    return candidate.logit == 0.0F;
}

void SamplerPart::check(llama_token token) {
    if (model_) {
        model_->check_token(token);
    }
    require_usable();
    if (!is_grammar()) {
        return;
    }
    if (!fits(token)) { // upstream ends the process, or is left without a state
        throw Error(ErrorKind::bad_grammar, "token " + std::to_string(token) + " does not fit the grammar here");
    }
    if (kind_ == SamplerKind::lazy_grammar && n_bytes_ > most_bytes) {
        throw Error(ErrorKind::bad_grammar,
                    "a lazy grammar follows at most " + std::to_string(most_bytes) + " bytes of text: reset() it");
    }
}

void SamplerPart::accept(llama_token token) {
    auto call = [&] { guard([&] { llama_sampler_accept(native_.get(), token); }, accept_budget); };
    pending_ = false;
    if (kind_ != SamplerKind::lazy_grammar) {
        call();
        return;
    }
    char unused = '\0';
    n_bytes_ += static_cast<std::size_t>(std::abs(llama_token_to_piece(model_->vocab(), token, &unused, 1, 0, true)));
    if (n_bytes_ <= shallow_bytes) {
        call();
    } else {
        with_stack(n_bytes_ * stack_per_byte, call);
    }
}

void SamplerPart::reset() {
    n_bytes_ = 0;
    n_draws_ = 0;
    pending_ = false;
    if (is_grammar()) { // upstream reads the text anew
        with_stack(grammar_stack, [&] { llama_sampler_reset(native_.get()); });
    } else {
        llama_sampler_reset(native_.get());
    }
    broken_ = false;
}

SamplerPart SamplerPart::clone() const {
    SamplerPart copy(name_, kind_, llama_sampler_clone(native_.get()));
    copy.model_ = model_;
    copy.chooses_ = chooses_;
    copy.seed_ = seed_;
    copy.broken_ = broken_;
    copy.n_bytes_ = n_bytes_;
    if (kind_ == SamplerKind::adaptive_p) {
        // Upstream's copy begins its random draws again: what was drawn is drawn anew. It also remembers the last
        // choice, but not the probabilities that belong to it: that is forgotten.
        for (std::uint64_t i = 0; i < n_draws_; ++i) {
            llama_token_data two[] = {{0, 0.0F, 0.0F}, {1, 0.0F, 0.0F}};
            llama_token_data_array candidates = {two, 2, -1, true};
            llama_sampler_apply(copy.native_.get(), &candidates);
        }
        if (n_draws_ > 0 || pending_) {
            llama_sampler_accept(copy.native_.get(), LLAMA_TOKEN_NULL);
        }
        copy.n_draws_ = n_draws_;
    }
    return copy;
}

} // namespace ipyllama
