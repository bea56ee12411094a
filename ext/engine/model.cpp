#include "model.h"

#include <climits>
#include <set>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "checks.h"
#include "deep_stack.h"
#include "log.h"
#include "meta.h"

namespace ipyllama {
namespace {

bool on_progress(float fraction, void *user_data) {
    auto *progress = static_cast<LoadProgress *>(user_data);
    progress->fraction = fraction;
    return !progress->cancelled;
}

// Calls `fill(buffer, size)` again with room where the first answer was "this many bytes" (negated).
template <typename Fill> std::string fill_string(Fill fill, int guess) {
    std::string text(static_cast<std::size_t>(guess), '\0');
    int n = fill(text.data(), guess);
    if (n < 0) {
        require(n != INT_MIN, "the text is too long");
        text.resize(static_cast<std::size_t>(-n));
        n = fill(text.data(), -n);
    }
    text.resize(static_cast<std::size_t>(n < 0 ? 0 : n));
    return text;
}

void require_vocab(const ModelHandle &handle) {
    require(llama_vocab_type(handle.vocab()) != LLAMA_VOCAB_TYPE_NONE, "this model has no vocabulary");
}

} // namespace

ModelHandle::~ModelHandle() {
    llama_model_free(model);
#ifdef __GLIBC__
    malloc_trim(0); // "unload frees the memory" includes what the allocator would keep for later
#endif
}

std::string ModelHandle::architecture() const {
    return meta_value(model, "general.architecture");
}

std::string ModelHandle::pooling() const {
    static const std::map<std::string, std::string> names = {
        {"0", "none"}, {"1", "mean"}, {"2", "cls"}, {"3", "last"}, {"4", "rank"},
    };
    const auto value = meta_value(model, architecture() + ".pooling_type");
    const auto found = names.find(value);
    return found == names.end() ? "unspecified" : found->second;
}

llama_pos ModelHandle::n_positions() const {
    // Those that read a tensor of positions; beyond its end llama.cpp ends the process.
    static const std::set<std::string> learned = {"bert", "gpt2", "mpt", "starcoder"};
    return learned.count(architecture()) > 0 ? llama_model_n_ctx_train(model) : INT32_MAX;
}

std::uint32_t ModelHandle::n_cls_out() const {
    const auto n = llama_model_n_cls_out(model);
    // llama.cpp answers 1 for every model, and what a file says may be more than its tensors have.
    return pooling() == "rank" && n <= static_cast<std::uint32_t>(llama_model_n_embd_out(model)) ? n : 0;
}

void ModelHandle::check_token(llama_token token) const {
    const int n = llama_vocab_n_tokens(vocab());
    require(token >= 0 && token < n,
            "token " + std::to_string(token) + " is not in the vocabulary (0 to " + std::to_string(n - 1) + ")");
}

std::shared_ptr<Model> Model::load(const std::string &path, const ModelOptions &options,
                                   const std::shared_ptr<LoadProgress> &progress) {
    require(path.find('\0') == std::string::npos, "the path holds a NUL character");
    auto backend = Backend::shared();
    const auto mark = log::next_number();
    auto params = llama_model_default_params();
    params.n_gpu_layers = options.n_gpu_layers;
    params.load_mode = options.use_mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    params.vocab_only = options.vocab_only;
    params.check_tensors = options.check_tensors;
    params.progress_callback = on_progress;
    params.progress_callback_user_data = progress.get();
    const ChecksThrow checks; // upstream's loader catches what they throw
    llama_model *model = llama_model_load_from_file(path.c_str(), params);
    if (model == nullptr && progress->cancelled) {
        throw Error(ErrorKind::aborted, "loading was cancelled");
    }
    if (model == nullptr) {
        throw Error(ErrorKind::bad_model_file, "llama.cpp cannot load " + path + log::reason_since(mark));
    }
    return std::make_shared<Model>(std::make_shared<ModelHandle>(std::move(backend), model));
}

std::vector<llama_token> Model::tokenize(const std::string &text, bool add_special, bool parse_special) const {
    const auto handle = owned_.get();
    require_vocab(*handle);
    require(text.size() < INT_MAX / 2, "the text is too long to tokenise in one call");
    const auto n_text = static_cast<int>(text.size());
    std::vector<llama_token> tokens(text.size() + 8);
    int n = 0;
    auto call = [&] {
        const ChecksThrow checks;
        n = llama_tokenize(handle->vocab(), text.data(), n_text, tokens.data(), static_cast<int>(tokens.size()),
                           add_special, parse_special);
        if (n < 0) {
            require(n != INT_MIN, "the text is too long to tokenise in one call");
            tokens.resize(static_cast<std::size_t>(-n));
            n = llama_tokenize(handle->vocab(), text.data(), n_text, tokens.data(), -n, add_special, parse_special);
        }
    };
    with_stack_for_text(text.size(), call);
    tokens.resize(static_cast<std::size_t>(n < 0 ? 0 : n));
    return tokens;
}

std::string Model::detokenize(const std::vector<llama_token> &tokens, bool special) const {
    const auto handle = owned_.get();
    require_vocab(*handle);
    for (const llama_token token : tokens) {
        handle->check_token(token);
    }
    return fill_string(
        [&](char *buffer, int size) {
            return llama_detokenize(handle->vocab(), tokens.data(), static_cast<int>(tokens.size()), buffer, size,
                                    false, special);
        },
        static_cast<int>(tokens.size()) * 8 + 16);
}

std::string Model::piece(llama_token token, bool special) const {
    const auto handle = owned_.get();
    require_vocab(*handle);
    handle->check_token(token);
    return fill_string(
        [&](char *buffer, int size) { return llama_token_to_piece(handle->vocab(), token, buffer, size, 0, special); },
        64);
}

bool Model::is_eog(llama_token token) const {
    const auto handle = owned_.get();
    handle->check_token(token);
    return llama_vocab_is_eog(handle->vocab(), token);
}

bool Model::is_control(llama_token token) const {
    const auto handle = owned_.get();
    require_vocab(*handle);
    handle->check_token(token);
    return llama_vocab_is_control(handle->vocab(), token);
}

std::map<std::string, std::string> Model::metadata() const {
    const auto handle = owned_.get();
    std::map<std::string, std::string> found;
    for (int i = 0; i < llama_model_meta_count(handle->model); ++i) {
        const auto key = get_string([&](char *buffer, std::size_t size) {
            return llama_model_meta_key_by_index(handle->model, i, buffer, size);
        });
        found[key] = get_string([&](char *buffer, std::size_t size) {
            return llama_model_meta_val_str_by_index(handle->model, i, buffer, size);
        });
    }
    return found;
}

std::optional<std::string> Model::chat_template(const std::optional<std::string> &name) const {
    const auto handle = owned_.get();
    const char *text = llama_model_chat_template(handle->model, name ? name->c_str() : nullptr);
    return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

std::string Model::description() const {
    const auto handle = owned_.get();
    return get_string([&](char *buffer, std::size_t size) { return llama_model_desc(handle->model, buffer, size); });
}

std::optional<std::string> Model::cls_label(std::uint32_t i) const {
    const auto handle = owned_.get();
    const auto n = handle->n_cls_out();
    require(n > 0, "this model has no classifier");
    require(i < n, "the classifier has outputs 0 to " + std::to_string(n - 1));
    const char *label = llama_model_cls_label(handle->model, i);
    return label == nullptr ? std::nullopt : std::optional<std::string>(label);
}

} // namespace ipyllama
