#include "bind.h"
#include "engine/model.h"

using ipyllama::LoadProgress;
using ipyllama::Model;
using ipyllama::ModelOptions;

namespace {

std::shared_ptr<Model> load(const std::string &path, int n_gpu_layers, bool use_mmap, bool vocab_only,
                            bool check_tensors, std::shared_ptr<LoadProgress> progress) {
    const ReleasedGil release;
    if (!progress) {
        progress = std::make_shared<LoadProgress>();
    }
    return Model::load(path, ModelOptions{n_gpu_layers, use_mmap, vocab_only, check_tensors}, progress);
}

// A property read straight from llama.h.
template <typename Get> auto of_model(Get get) {
    return [get](const Model &self) { return get(self.handle()->model); };
}
template <typename Get> auto of_vocab(Get get) {
    return [get](const Model &self) { return get(self.handle()->vocab()); };
}

nb::dict metadata(const Model &self) {
    nb::dict found;
    for (const auto &[key, value] : self.metadata()) {
        found[to_text(key)] = to_text(value);
    }
    return found;
}

nb::object chat_template(const Model &self, const std::optional<std::string> &name) {
    const auto text = self.chat_template(name);
    return text ? nb::object(to_text(*text)) : nb::none();
}

nb::object cls_label(const Model &self, std::uint32_t i) {
    const auto label = self.cls_label(i);
    return label ? nb::object(to_text(*label)) : nb::none();
}

} // namespace

void init_model(nb::module_ &m) {
    nb::class_<LoadProgress>(m, "LoadProgress", "Watches and cancels a running Model.load.")
        .def(nb::init<>())
        .def_prop_ro(
            "fraction", [](const LoadProgress &self) { return self.fraction.load(); }, "0.0 to 1.0.")
        .def("cancel", [](LoadProgress &self) { self.cancelled = true; }, "Make the load raise Aborted.");

    nb::class_<Model> model(m, "Model", "Weights, vocabulary and metadata of one GGUF file.");
    bind_close(model);
    model
        .def_static("load", &load, "path"_a, nb::kw_only(), "n_gpu_layers"_a = -1, "use_mmap"_a = true,
                    "vocab_only"_a = false, "check_tensors"_a = false, "progress"_a = nb::none(),
                    "Load a GGUF file. Raises BadModelFile, or Aborted when `progress` was cancelled. `n_gpu_layers` "
                    "below 0 means all layers, where there is a GPU.")
        .def("tokenize", &Model::tokenize, "text"_a, "add_special"_a = true, "parse_special"_a = false, release_gil(),
             "Token ids of `text`. `add_special` adds BOS and EOS where the model wants them; `parse_special` reads "
             "control tokens written out in the text as such.")
        .def(
            "detokenize",
            [](const Model &self, const std::vector<llama_token> &tokens, bool special) {
                return to_bytes(self.detokenize(tokens, special));
            },
            "tokens"_a, "special"_a = false, "The bytes of `tokens`; a cut inside a character is not valid UTF-8.")
        .def(
            "piece",
            [](const Model &self, llama_token token, bool special) { return to_bytes(self.piece(token, special)); },
            "token"_a, "special"_a = false, "The bytes of one token; control tokens are empty unless `special`.")
        .def("is_eog", &Model::is_eog, "token"_a, "True for tokens that end generation (EOS, end of turn).")
        .def("is_control", &Model::is_control, "token"_a, "True for control tokens.")
        .def("metadata", &metadata, nb::sig("def metadata(self) -> dict[str, str]"),
             "GGUF metadata, scalars only, as text.")
        .def("chat_template", &chat_template, "name"_a = nb::none(),
             nb::sig("def chat_template(self, name: str | None = None) -> str | None"),
             "The Jinja source of the chat template in the file, or None.")
        .def("cls_label", &cls_label, "i"_a, nb::sig("def cls_label(self, i: int) -> str | None"),
             "What output i of the classifier stands for, or None where the file does not say.")
        .def_prop_ro(
            "description", [](const Model &self) { return to_text(self.description()); },
            nb::sig("def description(self) -> str"), "Architecture, size and quantisation in a few words.")
        .def_prop_ro("n_vocab", of_vocab(llama_vocab_n_tokens), "Tokens in the vocabulary.")
        .def_prop_ro("bos", of_vocab(llama_vocab_bos), "Beginning-of-sequence token, -1 if there is none.")
        .def_prop_ro("eos", of_vocab(llama_vocab_eos), "End-of-sequence token, -1 if there is none.")
        .def_prop_ro("sep", of_vocab(llama_vocab_sep), "Token between two texts, -1 if there is none.")
        .def_prop_ro("eot", of_vocab(llama_vocab_eot), "End-of-turn token, -1 if there is none.")
        .def_prop_ro("add_bos", of_vocab(llama_vocab_get_add_bos), "True if prompts begin with BOS.")
        .def_prop_ro("add_eos", of_vocab(llama_vocab_get_add_eos), "True if texts end with EOS.")
        .def_prop_ro("add_sep", of_vocab(llama_vocab_get_add_sep), "True if two texts stand with `sep` between them.")
        .def_prop_ro("size", of_model(llama_model_size), "Bytes of all tensors.")
        .def_prop_ro("n_params", of_model(llama_model_n_params), "Number of parameters.")
        .def_prop_ro("n_ctx_train", of_model(llama_model_n_ctx_train), "Tokens of context in training.")
        .def_prop_ro("n_embd", of_model(llama_model_n_embd), "Width of the residual stream.")
        .def_prop_ro("n_embd_out", of_model(llama_model_n_embd_out), "Width of an embedding.")
        .def_prop_ro(
            "n_cls_out", [](const Model &self) { return self.handle()->n_cls_out(); },
            "Outputs of the classifier of a ranking model, 0 if there is none.")
        .def_prop_ro(
            "pooling", [](const Model &self) { return self.handle()->pooling(); },
            "How embeddings of tokens become one, as the file says: none, mean, cls, last, rank; 'unspecified' if it "
            "says nothing.")
        .def_prop_ro("n_layer", of_model(llama_model_n_layer), "Number of layers.")
        .def_prop_ro("n_head", of_model(llama_model_n_head), "Query heads of the first layer.")
        .def_prop_ro("n_head_kv", of_model(llama_model_n_head_kv), "KV heads of the first layer.")
        .def_prop_ro("n_swa", of_model(llama_model_n_swa), "Sliding window in tokens, 0 if there is none.")
        .def_prop_ro("is_recurrent", of_model(llama_model_is_recurrent), "True for Mamba, RWKV and the like.")
        .def_prop_ro("is_hybrid", of_model(llama_model_is_hybrid), "True for Jamba, LFM2 and the like.")
        .def_prop_ro("has_encoder", of_model(llama_model_has_encoder), "True for encoder-decoder models.")
        .def_prop_ro("has_decoder", of_model(llama_model_has_decoder), "True for models that can generate.");
}
