// The makers: every parameter is checked before it reaches llama.cpp.
#include <algorithm>
#include <climits>
#include <cmath>
#include <random>
#include <regex>

#include "checks.h"
#include "deep_stack.h"
#include "grammar.h"
#include "log.h"
#include "sampler_part.h"

namespace ipyllama {
namespace {

// Below this the draw is certain, and dividing by the temperature would soon leave the range of a float.
constexpr float cold = 1e-9F;
constexpr int most_tokens = 1 << 20;        // that penalties may look back on
constexpr std::size_t longest_breaker = 40; // upstream would cut it there
constexpr std::size_t most_breakers = 64;
constexpr std::size_t most_patterns = 64;
constexpr std::size_t longest_pattern = 1024;
constexpr std::size_t longest_piece = 2048; // upstream's grammars call themselves once for each character of a token
constexpr std::size_t grammar_stack = 32U << 20U;

std::string text_of(float value) {
    std::string text = std::to_string(value);
    text.erase(text.find_last_not_of('0') + 1);
    return text.back() == '.' ? text.substr(0, text.size() - 1) : text;
}
std::string text_of(int value) {
    return std::to_string(value);
}

template <typename T>
void check_range(const char *name, T value, std::common_type_t<T> low, std::common_type_t<T> high) {
    require(value >= low && value <= high, // false for NaN
            std::string(name) + " must be " + text_of(low) + " to " + text_of(high));
}
void check_not_negative(const char *name, float value) {
    require(std::isfinite(value) && value >= 0, std::string(name) + " must be 0 or more");
}

std::uint32_t concrete(std::uint32_t seed) {
    std::random_device device;
    while (seed == random_seed) {
        seed = device();
    }
    return seed;
}

std::shared_ptr<ModelHandle> with_vocabulary(const Model &model) {
    auto handle = model.handle();
    require(llama_vocab_type(handle->vocab()) != LLAMA_VOCAB_TYPE_NONE, "this model has no vocabulary");
    return handle;
}

int n_tokens(const ModelHandle &model) {
    return llama_vocab_n_tokens(model.vocab());
}

std::vector<const char *> pointers(const std::vector<std::string> &texts) {
    std::vector<const char *> found;
    std::transform(texts.begin(), texts.end(), std::back_inserter(found),
                   [](const auto &text) { return text.c_str(); });
    return found;
}

void check_pieces(const ModelHandle &model) {
    char piece[longest_piece];
    for (llama_token token = 0; token < n_tokens(model); ++token) {
        require(llama_token_to_piece(model.vocab(), token, piece, sizeof(piece), 0, true) >= 0,
                "token " + std::to_string(token) + " of this vocabulary is too long for a grammar");
    }
}

void check_patterns(const std::vector<std::string> &patterns) {
    require(patterns.size() <= most_patterns, "too many patterns: at most " + std::to_string(most_patterns));
    for (const std::string &pattern : patterns) {
        if (pattern.empty() || pattern.size() > longest_pattern || pattern.find('\0') != std::string::npos) {
            throw GrammarError("a trigger pattern must have 1 to " + std::to_string(longest_pattern) +
                               " bytes, none of them NUL");
        }
        try {
            const std::regex compiled(pattern);
        } catch (const std::regex_error &error) {
            throw GrammarError("the trigger pattern '" + pattern + "' is not a regular expression: " + error.what());
        }
    }
}

template <typename Make> llama_sampler *make_grammar(Make make) {
    const auto mark = log::next_number();
    const ChecksThrow checks;
    llama_sampler *made = make();
    if (made == nullptr) {
        throw GrammarError("llama.cpp cannot use this grammar: " + log::errors_since(mark));
    }
    return made;
}

} // namespace

SamplerPart SamplerPart::choosing(std::optional<std::uint32_t> seed) && {
    chooses_ = true;
    seed_ = seed;
    return std::move(*this);
}
SamplerPart SamplerPart::seeded(std::uint32_t seed) && {
    seed_ = seed;
    return std::move(*this);
}
SamplerPart SamplerPart::of(std::shared_ptr<ModelHandle> model) && {
    model_ = std::move(model);
    return std::move(*this);
}

SamplerPart SamplerPart::greedy() {
    return SamplerPart("greedy", SamplerKind::plain, llama_sampler_init_greedy()).choosing();
}

SamplerPart SamplerPart::dist(std::uint32_t seed) {
    seed = concrete(seed);
    return SamplerPart("dist", SamplerKind::plain, llama_sampler_init_dist(seed)).choosing(seed);
}

SamplerPart SamplerPart::top_k(int k) {
    check_range("top_k", k, 0, INT_MAX);
    return {"top_k", SamplerKind::sorting, llama_sampler_init_top_k(k)};
}

SamplerPart SamplerPart::top_p(float p, std::size_t min_keep) {
    check_range("top_p", p, 0, 1);
    return {"top_p", SamplerKind::sorting, llama_sampler_init_top_p(p, min_keep)};
}

SamplerPart SamplerPart::min_p(float p, std::size_t min_keep) {
    check_range("min_p", p, 0, 1);
    return {"min_p", SamplerKind::sorting, llama_sampler_init_min_p(p, min_keep)};
}

SamplerPart SamplerPart::typical(float p, std::size_t min_keep) {
    check_range("typical", p, 0, 1);
    return {"typical", SamplerKind::logarithmic, llama_sampler_init_typical(p, min_keep)};
}

SamplerPart SamplerPart::top_n_sigma(float n) {
    check_not_negative("top_n_sigma", n);
    return {"top_n_sigma", SamplerKind::plain, llama_sampler_init_top_n_sigma(n)};
}

SamplerPart SamplerPart::temp(float t) {
    check_not_negative("temperature", t);
    return {"temp", SamplerKind::plain, llama_sampler_init_temp(t < cold ? 0 : t)};
}

SamplerPart SamplerPart::temp_ext(float t, float delta, float exponent) {
    check_not_negative("temperature", t);
    check_range("delta", delta, 0, 1e6F);
    check_range("exponent", exponent, 0, 1e6F);
    const auto kind = delta > 0 ? SamplerKind::temp_ext : SamplerKind::plain;
    return {"temp_ext", kind, llama_sampler_init_temp_ext(t < cold ? 0 : t, delta, exponent)};
}

SamplerPart SamplerPart::xtc(float probability, float threshold, std::size_t min_keep, std::uint32_t seed) {
    check_range("probability", probability, 0, 1);
    check_range("threshold", threshold, 0, 1);
    seed = concrete(seed);
    return SamplerPart("xtc", SamplerKind::sorting, llama_sampler_init_xtc(probability, threshold, min_keep, seed))
        .seeded(seed);
}

SamplerPart SamplerPart::mirostat(const Model &model, float tau, float eta, int m, std::uint32_t seed) {
    check_range("tau", tau, 0, 100);
    check_range("eta", eta, 0, 1);
    check_range("m", m, 2, INT_MAX);
    auto handle = with_vocabulary(model);
    seed = concrete(seed);
    auto *native = llama_sampler_init_mirostat(n_tokens(*handle), seed, tau, eta, m);
    return SamplerPart("mirostat", SamplerKind::logarithmic, native).choosing(seed).of(std::move(handle));
}

SamplerPart SamplerPart::mirostat_v2(float tau, float eta, std::uint32_t seed) {
    check_range("tau", tau, 0, 100);
    check_range("eta", eta, 0, 1);
    seed = concrete(seed);
    return SamplerPart("mirostat_v2", SamplerKind::sorting, llama_sampler_init_mirostat_v2(seed, tau, eta))
        .choosing(seed);
}

SamplerPart SamplerPart::adaptive_p(float target, float decay, std::uint32_t seed) {
    check_range("target", target, 0, 1);
    check_range("decay", decay, 0, 0.99F);
    seed = concrete(seed);
    return SamplerPart("adaptive_p", SamplerKind::adaptive_p, llama_sampler_init_adaptive_p(target, decay, seed))
        .choosing(seed);
}

SamplerPart SamplerPart::penalties(const Model &model, int last_n, float repeat, float frequency, float presence) {
    check_range("last_n", last_n, 0, most_tokens);
    check_range("repeat", repeat, 0.01F, 100);
    check_range("frequency", frequency, -1000, 1000);
    check_range("presence", presence, -1000, 1000);
    auto handle = with_vocabulary(model);
    auto *native = llama_sampler_init_penalties(n_tokens(*handle), last_n, repeat, frequency, presence);
    return SamplerPart("penalties", SamplerKind::plain, native).of(std::move(handle));
}

SamplerPart SamplerPart::dry(const Model &model, float multiplier, float base, int allowed_length, int last_n,
                             const std::vector<std::string> &breakers) {
    check_range("multiplier", multiplier, 0, 1e6F);
    check_range("base", base, 1, 1e6F);
    check_range("allowed_length", allowed_length, 1, most_tokens);
    check_range("last_n", last_n, 0, most_tokens);
    require(breakers.size() <= most_breakers, "too many breakers: at most " + std::to_string(most_breakers));
    for (const std::string &breaker : breakers) {
        require(!breaker.empty() && breaker.size() <= longest_breaker && breaker.find('\0') == std::string::npos,
                "a breaker must have 1 to " + std::to_string(longest_breaker) + " bytes, none of them NUL");
    }
    auto handle = with_vocabulary(model);
    auto texts = pointers(breakers);
    const ChecksThrow checks; // it tokenises
    auto *native =
        llama_sampler_init_dry(handle->vocab(), multiplier, base, allowed_length, last_n, texts.data(), texts.size());
    return SamplerPart("dry", SamplerKind::plain, native).of(std::move(handle));
}

SamplerPart SamplerPart::logit_bias(const Model &model, const std::map<llama_token, float> &biases) {
    auto handle = with_vocabulary(model);
    std::vector<llama_logit_bias> list;
    for (const auto &[token, bias] : biases) {
        handle->check_token(token);
        require(bias < INFINITY, // false for NaN
                "the bias of token " + std::to_string(token) + " must be a number, or -inf to forbid the token");
        list.push_back({token, bias});
    }
    auto *native = llama_sampler_init_logit_bias(n_tokens(*handle), static_cast<int>(list.size()), list.data());
    return SamplerPart("logit_bias", SamplerKind::plain, native).of(std::move(handle));
}

SamplerPart SamplerPart::infill(const Model &model) {
    auto handle = with_vocabulary(model);
    require(llama_vocab_eot(handle->vocab()) >= 0 || llama_vocab_eos(handle->vocab()) >= 0,
            "infill needs a token that ends a text: this vocabulary has none");
    auto *native = llama_sampler_init_infill(handle->vocab());
    return SamplerPart("infill", SamplerKind::infill, native).of(std::move(handle));
}

SamplerPart SamplerPart::grammar(const Model &model, const std::string &text, const std::string &root) {
    auto handle = with_vocabulary(model);
    check_pieces(*handle);
    llama_sampler *native = nullptr;
    with_stack(grammar_stack, [&] {
        native = make_grammar([&] {
            check_grammar(text, root, handle->vocab());
            return llama_sampler_init_grammar(handle->vocab(), text.c_str(), root.c_str());
        });
    });
    return SamplerPart("grammar", SamplerKind::grammar, native).of(std::move(handle));
}

SamplerPart SamplerPart::grammar_lazy_patterns(const Model &model, const std::string &text, const std::string &root,
                                               const std::vector<std::string> &patterns,
                                               const std::vector<llama_token> &tokens) {
    require(!patterns.empty() || !tokens.empty(), "a lazy grammar needs a pattern or a token that triggers it");
    auto handle = with_vocabulary(model);
    check_pieces(*handle);
    std::for_each(tokens.begin(), tokens.end(), [&](llama_token token) { handle->check_token(token); });
    llama_sampler *native = nullptr;
    with_stack(grammar_stack, [&] { // std::regex calls itself for every part of a pattern
        native = make_grammar([&] {
            check_patterns(patterns);
            check_grammar(text, root, handle->vocab());
            auto texts = pointers(patterns);
            return llama_sampler_init_grammar_lazy_patterns(handle->vocab(), text.c_str(), root.c_str(), texts.data(),
                                                            texts.size(), tokens.data(), tokens.size());
        });
    });
    return SamplerPart("grammar_lazy_patterns", SamplerKind::lazy_grammar, native).of(std::move(handle));
}

} // namespace ipyllama
