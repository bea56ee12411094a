#include "bind.h"
#include "engine/sampler.h"

#include <algorithm>

using ipyllama::Candidates;
using ipyllama::Sampler;
using ipyllama::SamplerPart;
using ipyllama::Sequence;

namespace {

// A maker of parts as a maker of samplers.
template <typename... Arguments> auto maker(SamplerPart (*make)(Arguments...)) {
    return [make](Arguments... arguments) { return std::make_shared<Sampler>(make(arguments...)); };
}

Candidates apply(Sampler &self, nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> logits) {
    std::vector<float> values(logits.data(), logits.data() + logits.size());
    const ReleasedGil release;
    return self.apply(values);
}

auto top_logprobs(const Sequence &sequence, int k) {
    auto found = [&] {
        const ReleasedGil release;
        return ipyllama::top_logprobs(sequence, k);
    }();
    return std::pair(to_array(std::move(found.first)), to_array(std::move(found.second)));
}

template <typename T> auto copied(std::vector<T> Candidates::*field) {
    return [field](const Candidates &self) { return to_array(self.*field); };
}

void init_filters(nb::class_<Sampler> &sampler) {
    sampler
        .def_static("top_k", maker(&SamplerPart::top_k), "k"_a, release_gil(),
                    "Keep the k most probable tokens; 0 keeps all.")
        .def_static("top_p", maker(&SamplerPart::top_p), "p"_a, "min_keep"_a = 1, release_gil(),
                    "Keep the most probable tokens that together have probability p; 1 keeps all. `min_keep` tokens "
                    "are kept in any case. Nucleus sampling: https://arxiv.org/abs/1904.09751")
        .def_static("min_p", maker(&SamplerPart::min_p), "p"_a, "min_keep"_a = 1, release_gil(),
                    "Keep tokens with at least p times the probability of the most probable one; 0 keeps all. "
                    "https://arxiv.org/abs/2407.01082")
        .def_static("typical", maker(&SamplerPart::typical), "p"_a, "min_keep"_a = 1, release_gil(),
                    "Keep the tokens whose surprise is closest to the entropy, up to probability p; 1 keeps all. "
                    "https://arxiv.org/abs/2202.00666")
        .def_static("top_n_sigma", maker(&SamplerPart::top_n_sigma), "n"_a, release_gil(),
                    "Keep logits within n standard deviations of the largest; 0 keeps all. "
                    "https://arxiv.org/abs/2411.07641")
        .def_static("xtc", maker(&SamplerPart::xtc), "probability"_a, "threshold"_a = 0.1F, "min_keep"_a = 1,
                    "seed"_a = 0, release_gil(),
                    "Exclude top choices: with `probability`, drop all tokens of at least `threshold` but the least "
                    "probable of them. A threshold above 0.5 is off.")
        .def_static("infill", maker(&SamplerPart::infill), "model"_a, release_gil(),
                    "For text between two others: merge tokens that begin alike, end rather than guess. It wants at "
                    "most 1,024 candidates: put a top_k before it.");
}

void init_logit_changes(nb::class_<Sampler> &sampler) {
    sampler
        .def_static("temp", maker(&SamplerPart::temp), "temperature"_a, release_gil(),
                    "Divide logits by the temperature; 0 keeps only the most probable token.")
        .def_static("temp_ext", maker(&SamplerPart::temp_ext), "temperature"_a, "delta"_a, "exponent"_a = 1.0F,
                    release_gil(),
                    "Dynamic temperature, from temperature - delta to temperature + delta, growing with the entropy "
                    "to the power `exponent`. The largest logit becomes 0. https://arxiv.org/abs/2309.02772")
        .def_static("penalties", maker(&SamplerPart::penalties), "model"_a, nb::kw_only(), "last_n"_a = 64,
                    "repeat"_a = 1.0F, "frequency"_a = 0.0F, "presence"_a = 0.0F, release_gil(),
                    "Of tokens among the `last_n` accepted ones, divide positive logits by `repeat` and multiply "
                    "others; subtract `frequency` for each time, and `presence` once.")
        .def_static("dry", maker(&SamplerPart::dry), "model"_a, nb::kw_only(), "multiplier"_a = 0.8F, "base"_a = 1.75F,
                    "allowed_length"_a = 2, "last_n"_a = 64,
                    "breakers"_a = std::vector<std::string>{"\n", ":", "\"", "*"}, release_gil(),
                    "Don't repeat yourself: from a token that would extend a repetition of n >= allowed_length tokens "
                    "among the last `last_n`, subtract multiplier * base ** (n - allowed_length). A repetition does "
                    "not reach across `breakers`.")
        .def_static("logit_bias", maker(&SamplerPart::logit_bias), "model"_a, "biases"_a, release_gil(),
                    "Add to the logits of tokens, by id; -inf forbids a token.");
}

void init_grammars(nb::class_<Sampler> &sampler) {
    sampler
        .def_static("grammar", maker(&SamplerPart::grammar), "model"_a, "text"_a, "root"_a = "root", release_gil(),
                    "Keep tokens that continue a text of this GBNF grammar. Raises BadGrammar, with line and column.")
        .def_static("grammar_lazy_patterns", maker(&SamplerPart::grammar_lazy_patterns), "model"_a, "text"_a,
                    nb::kw_only(), "root"_a = "root", "patterns"_a = std::vector<std::string>(),
                    "tokens"_a = std::vector<llama_token>(), release_gil(),
                    "Like grammar, but only once a regular expression of `patterns` is found in what was accepted (the "
                    "text from its first group on must then fit), or a token of `tokens` was accepted.");
}

void init_choosers(nb::class_<Sampler> &sampler) {
    sampler.def_static("greedy", maker(&SamplerPart::greedy), release_gil(), "Choose the most probable token.")
        .def_static("dist", maker(&SamplerPart::dist), "seed"_a = 0, release_gil(),
                    "Draw a token by probability. Seed 4294967295 draws another seed: look at `seed`.")
        .def_static("mirostat", maker(&SamplerPart::mirostat), "model"_a, "tau"_a = 5.0F, "eta"_a = 0.1F, "m"_a = 100,
                    "seed"_a = 0, release_gil(),
                    "Draw so that the surprise stays near `tau` bits, learning at rate `eta` from `m` tokens. "
                    "https://arxiv.org/abs/2007.14966")
        .def_static("mirostat_v2", maker(&SamplerPart::mirostat_v2), "tau"_a = 5.0F, "eta"_a = 0.1F, "seed"_a = 0,
                    release_gil(), "Mirostat 2: drop tokens of more surprise than a moving bound, then draw.")
        .def_static("adaptive_p", maker(&SamplerPart::adaptive_p), "target"_a, "decay"_a = 0.9F, "seed"_a = 0,
                    release_gil(),
                    "Draw tokens near the probability `target`, on average over 1 / (1 - decay) tokens. "
                    "https://github.com/ggml-org/llama.cpp/pull/17927");
}

// One native step per token, so that Ctrl-C is seen between them: a pattern may take long over each.
void accept(Sampler &self, const std::vector<llama_token> &tokens) {
    for (const llama_token token : tokens) {
        {
            const ReleasedGil release;
            self.accept({token});
        }
        if (PyErr_CheckSignals() != 0) {
            throw nb::python_error();
        }
    }
}

} // namespace

void init_sampler(nb::module_ &m) {
    nb::class_<Candidates>(m, "Candidates", "What samplers left to choose from, in their order.")
        .def_prop_ro("tokens", copied(&Candidates::tokens), nb::rv_policy::move,
                     "Token ids: int32, shape (n,). The array owns its data.")
        .def_prop_ro("logits", copied(&Candidates::logits), nb::rv_policy::move,
                     "Their logits: float32, shape (n,), an owner.")
        .def_prop_ro("probabilities", copied(&Candidates::probabilities), nb::rv_policy::move,
                     "Softmax of these logits: float32, shape (n,), an owner.")
        .def_prop_ro(
            "selected", [](const Candidates &self) { return self.selected; },
            "The token chosen, None if the last sampler only filters.")
        .def("__len__", [](const Candidates &self) { return self.tokens.size(); });

    nb::class_<Sampler> sampler(m, "Sampler",
                                "Chooses tokens from logits. Each static method makes a sampler of that kind; chain() "
                                "puts them in order.");
    bind_close(sampler);
    init_filters(sampler);
    init_logit_changes(sampler);
    init_grammars(sampler);
    init_choosers(sampler);
    sampler
        .def_static("chain", &Sampler::chain, "parts"_a, release_gil(),
                    "Samplers that work one after another, copied with their state; parts that are chains are taken "
                    "apart. Only the last may choose.")
        .def("sample", &Sampler::sample, "sequence"_a, release_gil(),
             "The next token, from the sequence's last logits; it counts as accepted. Raises BadGrammar where no token "
             "fits, and BadArgument if the last sampler only filters.")
        .def("apply", &apply, "logits"_a,
             "What is left of logits of shape (n_vocab,), float32. Draws as sample() does, and accepts nothing.")
        .def("accept", &accept, "tokens"_a,
             "Take note of tokens that come next in the ledger: penalties count them, grammars move on. Raises "
             "BadGrammar for a token that does not fit; those before it stay accepted.")
        .def("reset", &Sampler::reset, release_gil(), "Forget accepted tokens and start the random draws again.")
        .def("clone", &Sampler::clone, release_gil(), "A copy that goes on from the same state.")
        .def_prop_ro("name", &Sampler::name, "The name of its static method.")
        .def_prop_ro("names", &Sampler::names, "The names of the parts, in order.")
        .def_prop_ro("seed", &Sampler::seed, "The seed of the last part that draws, None if none does.");
    m.def(
        "top_logprobs", &top_logprobs, "sequence"_a, "k"_a,
        "The k most probable tokens of the sequence's last logits, ties by id: ids, int32, and the natural logarithms "
        "of their probabilities over the whole vocabulary, float32; both of shape (k,), owners.");
}
