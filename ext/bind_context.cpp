#include "bind.h"
#include "engine/context.h"
#include "engine/sequence.h"

using ipyllama::Context;
using ipyllama::ContextOptions;
using ipyllama::Model;
using ipyllama::Sequence;
using ipyllama::Snapshot;

void init_context(nb::module_ &m) {
    nb::class_<ContextOptions>(m, "ContextOptions", "How to make a Context. `n_batch` is the longest step in tokens.")
        .def(nb::init<>())
        .def_rw("n_ctx", &ContextOptions::n_ctx, "Tokens of KV memory.")
        .def_rw("n_batch", &ContextOptions::n_batch, "Most tokens in one step.")
        .def_rw("n_seq_max", &ContextOptions::n_seq_max, "Most sequences at once.")
        .def_rw("n_threads", &ContextOptions::n_threads, "CPU threads of a step.")
        .def_rw("flash_attention", &ContextOptions::flash_attention, "1 on, 0 off, -1 llama.cpp decides.")
        .def_rw("swa_full", &ContextOptions::swa_full, "Keep cells outside the window, so that trims stay exact.")
        .def_rw("type_k", &ContextOptions::type_k, "Type of K cells: f16, q8_0 ...")
        .def_rw("type_v", &ContextOptions::type_v, "Type of V cells.");

    nb::class_<Context> context(m, "Context", "KV memory and compute buffers for one model; keeps the model alive.");
    bind_close(context);
    context.def(nb::init<const Model &, const ContextOptions &>(), "model"_a, "options"_a, release_gil())
        .def("abort", &Context::abort, "End a running step within one micro-batch; refuse steps until clear_abort().")
        .def("clear_abort", &Context::clear_abort, "Allow steps again.")
        .def_prop_ro("n_ctx", &Context::n_ctx, "Tokens of KV memory, as llama.cpp rounded it.")
        .def_prop_ro("n_batch", &Context::n_batch, "Most tokens in one step.")
        .def_prop_ro("n_seq_max", &Context::n_seq_max, "Most sequences at once.")
        .def_prop_ro("n_threads", &Context::n_threads, "CPU threads of a step.");

    nb::class_<Snapshot>(m, "Snapshot", "The KV of a whole sequence, copied out of its context.")
        .def_prop_ro("tokens", &Snapshot::tokens, "The ledger when it was taken.")
        .def_prop_ro("nbytes", [](const Snapshot &self) { return self.data().size(); }, "Size in bytes.");

    nb::class_<Sequence>(m, "Sequence", "One run of tokens with KV in a context.")
        .def(nb::init<std::shared_ptr<Context>, llama_seq_id>(), "context"_a, "id"_a = 0, release_gil())
        .def("decode", &Sequence::decode, "tokens"_a, release_gil(),
             "One step: evaluate up to n_batch tokens after the ledger. Raises Aborted if the abort flag is set; the "
             "ledger then holds what is in memory, which on recurrent and hybrid models may be nothing.")
        .def("trim", &Sequence::trim, "n"_a, release_gil(),
             "Keep the first n tokens. Raises CannotTrim where the architecture refuses; look at len() afterwards.")
        .def("clear", &Sequence::clear, release_gil(), "Forget everything.")
        .def("__len__", &Sequence::size, release_gil())
        .def_prop_ro("tokens", &Sequence::tokens, release_gil(), "The ledger: ids of the tokens with KV, in order.")
        .def_prop_ro("pos_min", &Sequence::pos_min, release_gil(), "First position in memory, -1 if empty.")
        .def_prop_ro("pos_max", &Sequence::pos_max, release_gil(), "Last position in memory, -1 if empty.")
        .def_prop_ro("has_logits", &Sequence::has_logits, release_gil(), "True if logits() would answer.")
        .def(
            "logits",
            [](const Sequence &self) {
                std::vector<float> values;
                {
                    const nb::gil_scoped_release release;
                    values = self.logits();
                }
                return to_array(std::move(values));
            },
            "Logits after the last token evaluated: float32, shape (n_vocab,). The array owns its data.")
        .def("snapshot", &Sequence::snapshot, release_gil(),
             "Copy the KV and the ledger out. Of a windowed model's layers only the window is copied: what is longer "
             "comes back equal within rounding, and cannot be trimmed.")
        .def("restore", &Sequence::restore, "snapshot"_a, release_gil(),
             "Replace what the sequence holds. Raises BadState, and is then empty, if the snapshot does not fit.");
}
