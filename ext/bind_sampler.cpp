#include "bind.h"
#include "engine/sampler.h"

using ipyllama::Model;
using ipyllama::Sampler;
using ipyllama::SamplerOptions;

void init_sampler(nb::module_ &m) {
    nb::class_<SamplerOptions>(m, "SamplerOptions", "How to choose the next token.")
        .def(nb::init<>())
        .def_rw("temperature", &SamplerOptions::temperature, "0 takes the most probable token.")
        .def_rw("top_k", &SamplerOptions::top_k, "Keep the k most probable tokens; 0 is off.")
        .def_rw("top_p", &SamplerOptions::top_p, "Keep the smallest set with this probability; 1 is off.")
        .def_rw("min_p", &SamplerOptions::min_p, "Drop tokens below this share of the most probable; 0 is off.")
        .def_rw("repeat_penalty", &SamplerOptions::repeat_penalty, "Divides logits of recent tokens; 1 is off.")
        .def_rw("repeat_last_n", &SamplerOptions::repeat_last_n, "How many recent tokens are penalised.")
        .def_rw("seed", &SamplerOptions::seed, "Seed of the random draw, 32 bits.");

    nb::class_<Sampler> sampler(m, "Sampler",
                                "Chooses tokens from logits: penalties, top-k, top-p, min-p, "
                                "temperature, draw, in this order.");
    bind_close(sampler);
    sampler.def(nb::init<const Model &, const SamplerOptions &>(), "model"_a, "options"_a, release_gil())
        .def("sample", &Sampler::sample, "sequence"_a, release_gil(),
             "The next token, from the sequence's last logits; it counts as accepted.")
        .def("accept", &Sampler::accept, "tokens"_a, release_gil(),
             "Take note of tokens already in the ledger, for the penalties.")
        .def("reset", &Sampler::reset, release_gil(), "Forget accepted tokens and start the random draw again.");
}
