#include "bind.h"
#include "engine/adapter.h"

using ipyllama::Adapter;
using ipyllama::Context;
using ipyllama::Model;

namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void set_control_vector(const Context &context, const Rows &data, int first, int last, bool keep_memory) {
    const ipyllama::ControlVector vector{data.data(), data.shape(0), data.shape(1)};
    const ReleasedGil release;
    ipyllama::set_control_vector(context, vector, first, last, keep_memory);
}

nb::dict metadata(const Adapter &self) {
    nb::dict found;
    for (const auto &[key, value] : self.metadata()) {
        found[to_text(key)] = to_text(value);
    }
    return found;
}

} // namespace

void init_adapter(nb::module_ &m) {
    nb::class_<Adapter> adapter(m, "Adapter",
                                "A LoRA adapter for one model, which it keeps alive. A context that uses it keeps it "
                                "alive too, whatever happens to this object.");
    bind_close(adapter);
    adapter
        .def_static("load", &Adapter::load, "model"_a, "path"_a, release_gil(),
                    "Load a LoRA adapter from a GGUF file. Raises BadModelFile if the file is damaged, is no LoRA "
                    "adapter, or was made for another architecture or for weights of other shapes.")
        .def("metadata", &metadata, nb::sig("def metadata(self) -> dict[str, str]"),
             "GGUF metadata, scalars only, as text.")
        .def_prop_ro(
            "path", [](const Adapter &self) { return to_text(self.path()); }, nb::sig("def path(self) -> str"),
            "The file that it came from.")
        .def_prop_ro("invocation_tokens", &Adapter::invocation_tokens,
                     "Of an activated LoRA (aLoRA): the tokens from which on it is meant to be set. Empty for others.");

    auto context = nb::borrow<nb::class_<Context>>(nb::type<Context>());
    context
        .def("set_adapters", &ipyllama::set_adapters, "adapters"_a, "keep_memory"_a = false, release_gil(),
             "Compute with these (adapter, scale) pairs from now on, their effects added up; an empty list takes all "
             "off. What sequences hold was computed otherwise, so they must be empty: BadArgument, unless "
             "`keep_memory` insists.")
        .def_prop_ro("adapters", &ipyllama::adapters, release_gil(), "The (adapter, scale) pairs now set, in order.")
        .def("set_control_vector", &set_control_vector, "data"_a, "first_layer"_a, "last_layer"_a,
             "keep_memory"_a = false,
             "Add row i of `data`, float32 of shape (n_layer, n_embd), to the output of layer i, for the layers from "
             "`first_layer` (1 or more: row 0 is never used) to `last_layer`. `keep_memory` as in set_adapters().")
        .def("clear_control_vector", &ipyllama::clear_control_vector, "keep_memory"_a = false, release_gil(),
             "Take the control vector off.");
}
