#include "bind.h"
#include "engine/sequence.h"

using ipyllama::Buffer;
using ipyllama::Bytes;
using ipyllama::Context;
using ipyllama::DeviceState;
using ipyllama::Outputs;
using ipyllama::Positions;
using ipyllama::Sequence;

namespace {

Positions positions(llama_pos p0, std::optional<llama_pos> p1) {
    ipyllama::require(p0 >= 0 && p1.value_or(0) >= 0, "positions are 0 or more");
    return {p0, p1.value_or(INT32_MAX)};
}

Bytes bytes(const ConstBytes &array) {
    return {array.data(), array.size()};
}

nb::ndarray<nb::numpy, float, nb::ndim<1>> row(const Sequence &self, std::vector<float> (Sequence::*get)() const) {
    std::vector<float> values;
    {
        const ReleasedGil release;
        values = (self.*get)();
    }
    return to_array(std::move(values));
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> all_logits(const Sequence &self) {
    auto owner = std::make_unique<std::vector<float>>();
    std::size_t n_vocab = 0;
    {
        const ReleasedGil release;
        *owner = self.all_logits();
        n_vocab = static_cast<std::size_t>(self.context()->n_vocab());
    }
    auto *values = owner.release();
    nb::capsule capsule(values, [](void *p) noexcept { delete static_cast<std::vector<float> *>(p); });
    return {values->data(), {values->size() / n_vocab, n_vocab}, capsule};
}

ByteArray save(const Sequence &self, llama_pos p0, std::optional<llama_pos> p1, bool partial) {
    const auto range = positions(p0, p1);
    Buffer buffer(0);
    {
        const ReleasedGil release;
        buffer = self.save(range, partial);
    }
    return to_array(std::move(buffer));
}

void bind_changes(nb::class_<Sequence> &sequence) {
    sequence
        .def(
            "rm", [](Sequence &self, llama_pos p0, std::optional<llama_pos> p1) { self.remove(positions(p0, p1)); },
            "p0"_a = 0, "p1"_a = nb::none(), release_gil(),
            "Forget the tokens at positions [p0, p1). Raises CannotTrim, and all is as it was, where the memory cannot "
            "do that. Positions of the rest stay: see add().")
        .def("trim", &Sequence::trim, "n"_a, release_gil(),
             "Keep the first n tokens. Raises CannotTrim, and all is as it was, where the memory cannot do that.")
        .def(
            "cp",
            [](Sequence &self, const Sequence &source, llama_pos p0, std::optional<llama_pos> p1) {
                self.copy(source, positions(p0, p1));
            },
            "source"_a, "p0"_a = 0, "p1"_a = nb::none(), release_gil(),
            "Share the source's cells at positions [p0, p1). Nothing is copied. Raises CannotTrim where only a whole "
            "sequence can be shared, BadArgument if a position is taken here.")
        .def("fork", &Sequence::fork, release_gil(),
             "A new sequence with the same tokens, in shared cells. Needs a free sequence number (n_seq_max).")
        .def(
            "add",
            [](Sequence &self, llama_pos p0, std::optional<llama_pos> p1, llama_pos delta) {
                self.add(positions(p0, p1), delta);
            },
            "p0"_a, "p1"_a, "delta"_a, release_gil(),
            "Move the tokens at positions [p0, p1) by delta; None is the end. Their keys are turned at the next step: "
            "close to what evaluation there would give, not equal. Raises CannotShift, and all is as it was, where "
            "the memory cannot do that or another sequence shares the cells.")
        .def(
            "div",
            [](Sequence &self, llama_pos p0, std::optional<llama_pos> p1, int divisor) {
                self.divide(positions(p0, p1), divisor);
            },
            "p0"_a, "p1"_a, "divisor"_a, release_gil(),
            "Divide the positions in [p0, p1), rounding down. Raises CannotShift like add().")
        .def("keep", &Sequence::keep, release_gil(), "Empty all other sequences of the context.")
        .def("clear", &Sequence::clear, release_gil(), "Forget everything.");
}

void bind_state(nb::class_<Sequence> &sequence) {
    sequence
        .def(
            "state_size",
            [](const Sequence &self, llama_pos p0, std::optional<llama_pos> p1, bool partial) {
                return self.state_size(positions(p0, p1), partial);
            },
            "p0"_a = 0, "p1"_a = nb::none(), nb::kw_only(), "partial"_a = false, release_gil(),
            "Bytes that save() with the same arguments would give.")
        .def("save", &save, "p0"_a = 0, "p1"_a = nb::none(), nb::kw_only(), "partial"_a = false,
             "The state at positions [p0, p1), as llama.cpp writes it: uint8, shape (n,). The array owns its data. Of "
             "windowed layers the window before p1 is copied. `partial` copies windowed and recurrent layers only, "
             "see rewind(). Raises CannotTrim where there is no state for that range. A pending shift is applied "
             "first, which loses the logits.")
        .def(
            "save_into",
            [](const Sequence &self, MutableBytes out, llama_pos p0, std::optional<llama_pos> p1, bool partial) {
                const auto range = positions(p0, p1);
                const ReleasedGil release;
                return self.save_into(out.data(), out.size(), range, partial);
            },
            "out"_a.noconvert(), "p0"_a = 0, "p1"_a = nb::none(), nb::kw_only(), "partial"_a = false,
            nb::sig("def save_into(self, out: typing_extensions.Buffer | numpy.typing.NDArray[numpy.uint8], p0: int = "
                    "0, p1: int | None = None, *, "
                    "partial: bool = False) -> int"),
            "save() into a buffer that can be written to; returns the number of bytes.")
        .def(
            "state_tokens",
            [](const Sequence &self, const ConstBytes &state) {
                const ReleasedGil release;
                return self.state_tokens(bytes(state));
            },
            "state"_a.noconvert(),
            nb::sig("def state_tokens(self, state: typing_extensions.Buffer | numpy.typing.NDArray[numpy.uint8]) -> "
                    "int"),
            "Number of tokens that a saved state is of. Raises BadState like restore(). Recurrent state alone tells "
            "its last position only: then as if the tokens began at position 0.")
        .def(
            "restore",
            [](Sequence &self, const ConstBytes &state, const std::vector<llama_token> &tokens) {
                const ReleasedGil release;
                self.restore(bytes(state), tokens);
            },
            "state"_a.noconvert(), "tokens"_a,
            nb::sig("def restore(self, state: typing_extensions.Buffer | numpy.typing.NDArray[numpy.uint8], tokens: "
                    "collections.abc.Sequence[int]) -> "
                    "None"),
            "Replace what the sequence holds by a saved state and the tokens that it is of. The bytes are checked "
            "against this model and context first: BadState, and all is as it was, where they differ. Nothing can "
            "tell whether the numbers in them are those of these tokens; values that are no numbers spoil the whole "
            "context until Memory.clear(). There are no logits until the next step.")
        .def(
            "append",
            [](Sequence &self, const ConstBytes &state, const std::vector<llama_token> &tokens) {
                const ReleasedGil release;
                self.append(bytes(state), tokens);
            },
            "state"_a.noconvert(), "tokens"_a,
            nb::sig("def append(self, state: typing_extensions.Buffer | numpy.typing.NDArray[numpy.uint8], tokens: "
                    "collections.abc.Sequence[int]) -> "
                    "None"),
            "Add the saved state of a range of positions after what the sequence holds. Checked like restore().")
        .def(
            "rewind",
            [](Sequence &self, const ConstBytes &partial, const std::vector<llama_token> &tokens) {
                const ReleasedGil release;
                self.rewind(bytes(partial), tokens);
            },
            "partial"_a.noconvert(), "tokens"_a,
            nb::sig("def rewind(self, partial: typing_extensions.Buffer | numpy.typing.NDArray[numpy.uint8], tokens: "
                    "collections.abc.Sequence[int]) -> "
                    "None"),
            "Go back to these tokens, which the sequence begins with, by the partial state that was saved when it "
            "held just them. For windowed and hybrid models, where a cut alone cannot. Checked like restore().")
        .def("save_on_device", &Sequence::save_on_device, release_gil(),
             "Copy the state within the device's memory. Saving the sequence again takes the copy's place. Raises "
             "BadArgument with quantised KV or without flash-attention, where llama.cpp cannot do that.")
        .def("restore_on_device", &Sequence::restore_on_device, "state"_a, release_gil(),
             "Replace what the sequence holds by its last save_on_device(). Raises BadState for any other.");
}

} // namespace

void init_sequence(nb::module_ &m) {
    nb::class_<DeviceState>(m, "DeviceState", "A sequence's state in the memory of the device.")
        .def_prop_ro(
            "n_tokens", [](const DeviceState &self) { return self.restored.cells.size(); }, "Tokens that it is of.");

    nb::class_<Sequence> sequence(m, "Sequence", "One run of tokens with KV in a context; keeps the context alive.");
    bind_close(sequence);
    sequence
        .def(nb::init<std::shared_ptr<Context>, std::optional<llama_seq_id>>(), "context"_a, "id"_a = nb::none(),
             release_gil())
        .def("decode", &Sequence::decode, "tokens"_a, "outputs"_a = Outputs::last, "position"_a = nb::none(),
             release_gil(),
             "One step: evaluate up to n_batch tokens after the ledger. `position` is that of the first token, in an "
             "empty sequence. Raises Aborted if the abort flag is set; the ledger then holds what is in memory, which "
             "on recurrent and hybrid models may be nothing.")
        .def("__len__", &Sequence::size, release_gil(), "Number of tokens.")
        .def_prop_ro("context", &Sequence::context, "The context it belongs to.")
        .def_prop_ro("id", &Sequence::id, "Its number in the context.")
        .def_prop_ro("tokens", &Sequence::tokens, release_gil(),
                     "The ledger: ids of the tokens with KV, ordered by position; -1 for a piece of an image or sound.")
        .def_prop_ro("positions", &Sequence::positions, release_gil(), "Their positions.")
        .def_prop_ro("cells", &Sequence::cells, release_gil(),
                     "A number for each token's cell, the same in sequences that share it.")
        .def_prop_ro("pos_min", &Sequence::pos_min, release_gil(),
                     "llama.cpp's first position, -1 if empty. A window moves it on; of recurrent state it is the "
                     "last.")
        .def_prop_ro("pos_max", &Sequence::pos_max, release_gil(), "llama.cpp's last position, -1 if empty.")
        .def_prop_ro("has_logits", &Sequence::has_logits, release_gil(), "True if logits() would answer.")
        .def(
            "logits", [](const Sequence &self) { return row(self, &Sequence::logits); },
            "Logits after the last token evaluated: float32, shape (n_vocab,). The array owns its data.")
        .def("all_logits", &all_logits,
             "Logits after each token of the last step that asked for them: float32, shape (n, n_vocab). The array "
             "owns its data.")
        .def(
            "embeddings", [](const Sequence &self) { return row(self, &Sequence::embeddings); },
            "Embedding of the last token evaluated, in a context with embeddings and pooling 'none': float32, shape "
            "(n_embd,). The array owns its data.");
    bind_changes(sequence);
    bind_state(sequence);
}
