#include "bind.h"
#include "engine/embedding.h"

using ipyllama::Context;
using ipyllama::Embeddings;

namespace {

nb::object to_rows(std::vector<float> values, const Embeddings &found) {
    auto owner = std::make_unique<std::vector<float>>(std::move(values));
    const std::size_t n = owner->size() / found.width;
    float *data = owner->data();
    nb::capsule capsule(owner.release(), [](void *p) noexcept { delete static_cast<std::vector<float> *>(p); });
    if (found.pooled) {
        return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<1>>(data, {found.width}, capsule));
    }
    return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(data, {n, found.width}, capsule));
}

nb::list embed(const Context &self, const std::vector<std::vector<llama_token>> &inputs) {
    Embeddings found;
    {
        const ReleasedGil release;
        found = ipyllama::embed(self, inputs);
    }
    nb::list rows;
    for (auto &values : found.inputs) {
        rows.append(to_rows(std::move(values), found));
    }
    return rows;
}

} // namespace

void init_embedding(nb::module_ &) {
    nb::cpp_function_def<Context>(
        &embed, nb::scope(nb::type<Context>()), nb::name("embed"), nb::is_method(), "inputs"_a,
        nb::sig("def embed(self, inputs: collections.abc.Sequence[collections.abc.Sequence[int]]) -> "
                "list[numpy.typing.NDArray[numpy.float32]]"),
        "Embeddings of several token lists in one step, in a context with embeddings=True: for each a float32 array "
        "that owns its data. Its shape is (n_embd_out,) if the context pools by mean, cls or last, (n_cls_out,) by "
        "rank, and (n_tokens, n_embd_out) with pooling 'none'. At most n_ubatch tokens together, and as many inputs "
        "as sequences are free (n_seq_max). Nothing stays in memory; logits of the last step are lost. Raises Aborted "
        "if the abort flag is set.");
}
