#include "bind.h"
#include "engine/batch.h"
#include "engine/context.h"
#include "engine/memory.h"
#include "engine/state.h"

using ipyllama::Batch;
using ipyllama::Buffer;
using ipyllama::Capability;
using ipyllama::Context;
using ipyllama::ContextOptions;
using ipyllama::Memory;
using ipyllama::Model;
using ipyllama::Outputs;
using ipyllama::Sequence;

namespace {

void bind_options(nb::module_ &m) {
    nb::class_<ContextOptions>(m, "ContextOptions", "How to make a Context. `n_batch` is the longest step in tokens.")
        .def(nb::init<>())
        .def_rw("n_ctx", &ContextOptions::n_ctx, "Tokens of KV memory, shared by all sequences.")
        .def_rw("n_batch", &ContextOptions::n_batch, "Most tokens in one step.")
        .def_rw("n_ubatch", &ContextOptions::n_ubatch,
                "Most tokens in one micro-batch; 0 is n_batch, and so is every number with a windowed model.")
        .def_rw("n_seq_max", &ContextOptions::n_seq_max, "Most sequences at once.")
        .def_rw("n_threads", &ContextOptions::n_threads, "CPU threads of a step.")
        .def_rw("n_threads_batch", &ContextOptions::n_threads_batch, "The same for several tokens; 0 is n_threads.")
        .def_rw("flash_attention", &ContextOptions::flash_attention, "1 on, 0 off, -1 llama.cpp decides.")
        .def_rw("swa_full", &ContextOptions::swa_full, "Keep cells outside the window, so that trims stay exact.")
        .def_rw("offload_kqv", &ContextOptions::offload_kqv, "KV memory on the GPU, where there is one.")
        .def_rw("type_k", &ContextOptions::type_k, "Type of K cells: f16, q8_0 ...")
        .def_rw("type_v", &ContextOptions::type_v, "Type of V cells.")
        .def_rw("embeddings", &ContextOptions::embeddings, "Compute embeddings as well as logits.")
        .def_rw("pooling", &ContextOptions::pooling,
                "How embeddings of tokens become one: none, mean, cls, last, rank; unspecified is the model's own.")
        .def_rw("rope_freq_base", &ContextOptions::rope_freq_base, "Base of RoPE; 0 is the model's.")
        .def_rw("rope_freq_scale", &ContextOptions::rope_freq_scale, "Scale of RoPE; 0 is the model's.");
}

void bind_batch(nb::module_ &m) {
    nb::enum_<Outputs>(m, "Outputs", "After which tokens of a step logits are computed.")
        .value("NONE", Outputs::none, "After none.")
        .value("LAST", Outputs::last, "After the last.")
        .value("ALL", Outputs::all, "After each.");

    nb::class_<Batch>(m, "Batch", "Tokens of several sequences for one step.")
        .def(nb::init<>())
        .def("add", &Batch::add, "sequence"_a, "tokens"_a, "outputs"_a = Outputs::last, "position"_a = nb::none(),
             "Tokens to evaluate after what the sequence holds. `position` is that of the first: by default the next "
             "one, and 0 in an empty sequence. A sequence can be added once.")
        .def("clear", &Batch::clear, "Forget what was added.")
        .def("__len__", &Batch::size, "Number of tokens.");
}

void bind_memory(nb::module_ &m) {
    nb::class_<Capability>(m, "Capability", "What sequences of a model and context can do, tried out.")
        .def_ro("level", &Capability::level,
                "'full': cut anywhere. 'extend': only go back to copies. 'none': no memory, or no way back.")
        .def_ro("can_shift", &Capability::can_shift, "True if positions can be moved.")
        .def_ro("reason", &Capability::reason, "Why it cannot do everything; '' if it can.");

    nb::class_<Memory>(m, "Memory", "The KV memory of a whole context.")
        .def("clear", &Memory::clear, "data"_a = true, release_gil(),
             "Empty all sequences. `data` also sets the buffers to zero.")
        .def_prop_ro("used", &Memory::used, release_gil(),
                     "Cells that hold something; a cell that sequences share counts once.")
        .def_prop_ro("total", &Memory::total, release_gil(),
                     "Cells there are: one per token, or with recurrent models one per sequence and one to spare.")
        .def_prop_ro("counts", &Memory::counts, release_gil(), "Tokens by sequence number, of sequences in use.")
        .def_prop_ro("can_shift", &Memory::can_shift, release_gil(),
                     "llama.cpp's word on whether positions can be moved; Sequence.add knows more.")
        .def("capability", &Memory::capability, release_gil(),
             "What sequences can do here. The first call evaluates four tokens in free cells, and logits of the last "
             "step are lost.");
}

void bind_state(nb::class_<Context> &context) {
    context.def("state_size", &Context::state_size, release_gil(), "Bytes that save() would give.")
        .def(
            "save",
            [](Context &self) {
                Buffer buffer(0);
                {
                    const ReleasedGil release;
                    buffer = self.save();
                }
                return to_array(std::move(buffer));
            },
            "The state of all sequences, as llama.cpp writes it: uint8, shape (n,). The array owns its data. Every "
            "cell is in it, those outside a window too.")
        .def(
            "save_into",
            [](Context &self, MutableBytes out) {
                const ReleasedGil release;
                return self.save_into(out.data(), out.size());
            },
            "out"_a.noconvert(),
            nb::sig("def save_into(self, out: typing_extensions.Buffer | numpy.typing.NDArray[numpy.uint8]) -> int"),
            "save() into a buffer that can be written to; returns the number of bytes.")
        .def_prop_ro("state_limit", &Context::state_limit, release_gil(),
                     "No state of this context, or of a sequence of it, has more bytes.")
        .def(
            "state_tokens",
            [](Context &self, const ConstBytes &state) {
                const ReleasedGil release;
                return self.state_tokens({state.data(), state.size()});
            },
            "state"_a.noconvert(),
            nb::sig("def state_tokens(self, state: typing_extensions.Buffer | numpy.typing.NDArray[numpy.uint8]) -> "
                    "dict[int, int]"),
            "Number of tokens of each sequence in a saved state, by sequence number. Raises BadState like restore(). "
            "Recurrent state alone tells its last position only: then as if the tokens began at position 0.")
        .def(
            "restore",
            [](Context &self, const ConstBytes &state, const std::map<llama_seq_id, std::vector<llama_token>> &tokens) {
                const ReleasedGil release;
                self.restore({state.data(), state.size()}, tokens);
            },
            "state"_a.noconvert(), "tokens"_a,
            nb::sig("def restore(self, state: typing_extensions.Buffer | numpy.typing.NDArray[numpy.uint8], tokens: "
                    "collections.abc.Mapping[int, "
                    "collections.abc.Sequence[int]]) -> None"),
            "Replace everything by a saved state; `tokens` are those of each sequence, by number. Sequences that the "
            "state holds have to exist. The bytes are checked against this model and context first: BadState, and all "
            "is as it was, where they differ.");
}

} // namespace

void init_context(nb::module_ &m) {
    bind_options(m);

    nb::class_<Context> context(m, "Context", "KV memory and compute buffers for one model; keeps the model alive.");
    bind_close(context);
    context.def(nb::init<const Model &, const ContextOptions &>(), "model"_a, "options"_a, release_gil())
        .def("abort", &Context::abort, "End a running step within one micro-batch; refuse steps until clear_abort().")
        .def("clear_abort", &Context::clear_abort, "Allow steps again.")
        .def("decode", &Context::decode, "batch"_a, release_gil(),
             "One step for all sequences of the batch. Raises Aborted if the abort flag is set; the ledgers then hold "
             "what is in memory. On recurrent and hybrid models that may be nothing, and after a step of several "
             "sequences it is nothing in any sequence of the context.")
        .def("set_threads", &Context::set_threads, "n_threads"_a, "n_threads_batch"_a, release_gil(),
             "CPU threads of steps of one token, and of several. Results may differ in the last bits.")
        .def_prop_ro(
            "memory", [](std::shared_ptr<Context> self) { return Memory(std::move(self)); },
            "What is in the memory, over all sequences.")
        .def_prop_ro("n_ctx", &Context::n_ctx, "Tokens of KV memory, as llama.cpp rounded it.")
        .def_prop_ro("n_batch", &Context::n_batch, "Most tokens in one step.")
        .def_prop_ro("n_ubatch", &Context::n_ubatch, "Most tokens in one micro-batch.")
        .def_prop_ro("n_seq_max", &Context::n_seq_max, "Most sequences at once.")
        .def_prop_ro("n_vocab", &Context::n_vocab, "Tokens in the model's vocabulary.")
        .def_prop_ro("n_threads", &Context::n_threads, "CPU threads of steps of one token.")
        .def_prop_ro("n_threads_batch", &Context::n_threads_batch, "CPU threads of steps of several tokens.");

    bind_state(context);
    bind_memory(m);
    bind_batch(m);
}
