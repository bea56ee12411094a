// One of llama.cpp's samplers, made from checked parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llama.h"

#include "model.h"

namespace ipyllama {

constexpr std::uint32_t random_seed = LLAMA_DEFAULT_SEED; // another one is drawn in its place

// What one of upstream's samplers needs beyond being called.
enum class SamplerKind { plain, sorting, logarithmic, temp_ext, infill, grammar, lazy_grammar, adaptive_p };

class SamplerPart {
  public:
    static SamplerPart greedy();
    static SamplerPart dist(std::uint32_t seed);
    static SamplerPart top_k(int k);
    static SamplerPart top_p(float p, std::size_t min_keep);
    static SamplerPart min_p(float p, std::size_t min_keep);
    static SamplerPart typical(float p, std::size_t min_keep);
    static SamplerPart top_n_sigma(float n);
    static SamplerPart temp(float t);
    static SamplerPart temp_ext(float t, float delta, float exponent);
    static SamplerPart xtc(float probability, float threshold, std::size_t min_keep, std::uint32_t seed);
    static SamplerPart mirostat(const Model &model, float tau, float eta, int m, std::uint32_t seed);
    static SamplerPart mirostat_v2(float tau, float eta, std::uint32_t seed);
    static SamplerPart adaptive_p(float target, float decay, std::uint32_t seed);
    static SamplerPart penalties(const Model &model, int last_n, float repeat, float frequency, float presence);
    static SamplerPart dry(const Model &model, float multiplier, float base, int allowed_length, int last_n,
                           const std::vector<std::string> &breakers);
    static SamplerPart logit_bias(const Model &model, const std::map<llama_token, float> &biases);
    static SamplerPart infill(const Model &model);
    // Throw GrammarError.
    static SamplerPart grammar(const Model &model, const std::string &text, const std::string &root);
    static SamplerPart grammar_lazy_patterns(const Model &model, const std::string &text, const std::string &root,
                                             const std::vector<std::string> &patterns,
                                             const std::vector<llama_token> &tokens);

    const std::string &name() const { return name_; }
    bool chooses() const { return chooses_; } // ends with a choice of one token
    std::optional<std::uint32_t> seed() const { return seed_; }
    int n_vocab() const; // 0 if it knows no vocabulary

    // Changes the candidates, which are not empty, without infinities. What is impossible afterwards is removed. Throws
    // bad_grammar where a grammar allows none of them, decode if no number is left.
    void apply(llama_token_data_array &candidates);
    // Throws bad_grammar, without a change, for a token that does not fit a grammar.
    void check(llama_token token);
    // Takes note of a token that check() let pass.
    void accept(llama_token token);
    void reset();
    SamplerPart clone() const;

  private:
    using Native = std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)>;

    SamplerPart(std::string name, SamplerKind kind, llama_sampler *native)
        : name_(std::move(name)), kind_(kind), native_(native, llama_sampler_free) {}
    SamplerPart choosing(std::optional<std::uint32_t> seed = {}) &&;
    SamplerPart seeded(std::uint32_t seed) &&;
    SamplerPart of(std::shared_ptr<ModelHandle> model) &&;

    bool is_grammar() const { return kind_ == SamplerKind::grammar || kind_ == SamplerKind::lazy_grammar; }
    void require_usable() const;
    void guard(const std::function<void()> &call, std::uint64_t allocations);
    void prepare(llama_token_data_array &candidates) const;
    void settle(llama_token_data_array &candidates) const;
    bool fits(llama_token token);

    std::string name_;
    SamplerKind kind_;
    std::shared_ptr<ModelHandle> model_; // declared before native_: freed after it
    Native native_;
    bool chooses_ = false;
    std::optional<std::uint32_t> seed_;
    bool broken_ = false;       // upstream threw half-way: only a reset mends it
    std::size_t n_bytes_ = 0;   // lazy_grammar: accepted so far
    std::uint64_t n_draws_ = 0; // adaptive_p: random draws so far
    bool pending_ = false;      // adaptive_p: a choice that was not accepted yet
};

} // namespace ipyllama
