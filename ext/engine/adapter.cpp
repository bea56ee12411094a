#include "adapter.h"

#include <algorithm>
#include <cmath>

#include "checks.h"
#include "gguf_header.h"
#include "log.h"
#include "meta.h"

namespace ipyllama {
namespace {

// Upstream keeps a list of adapters per model and does not guard it.
std::mutex &registry() {
    static std::mutex mutex;
    return mutex;
}

bool ends_with(const std::string &text, const std::string &end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Experts of one layer are stacked in the third dimension. Upstream looks at the first two only.
std::int64_t n_experts(const ModelHandle &model, const std::string &weight) {
    if (weight.find("exps") == std::string::npos) {
        return 1;
    }
    const auto text = meta_value(model.model, model.architecture() + ".expert_count");
    return text.empty() ? 1 : std::strtoll(text.c_str(), nullptr, 10);
}

// Shapes and types that upstream loads and then dies of while it computes.
void check_pair(const GgufHeader &header, const GgufTensor &a, const ModelHandle &model) {
    const std::string weight = a.name.substr(0, a.name.size() - 7); // ".lora_a"
    const GgufTensor *b = header.tensor(weight + ".lora_b");
    if (b == nullptr) {
        header.refuse(weight + " has a lora_a and no lora_b");
    }
    const bool embedding = ends_with(weight, "token_embd.weight"); // there lora_a is looked up by row
    const auto rank_of_a = embedding ? a.shape[0] : a.shape[1];
    if (rank_of_a < 1 || rank_of_a != b->shape[0]) {
        header.refuse("lora_a and lora_b of " + weight + " have ranks " + std::to_string(rank_of_a) + " and " +
                      std::to_string(b->shape[0]));
    }
    for (const GgufTensor *tensor : {&a, b}) {
        if (tensor->shape[2] != n_experts(model, weight) || tensor->shape[3] != 1) {
            header.refuse(tensor->name + " has dimensions that the model has not");
        }
        if (tensor->type != GGML_TYPE_F32 && tensor->type != GGML_TYPE_F16 && tensor->type != GGML_TYPE_BF16 &&
            tensor->type != GGML_TYPE_Q8_0) {
            header.refuse(tensor->name + " is of type " + ggml_type_name(tensor->type) +
                          ": convert the adapter to f32, f16, bf16 or q8_0");
        }
    }
}

void check_file(const GgufHeader &header, const ModelHandle &model) {
    if (header.text("general.type") != "adapter" || header.text("adapter.type") != "lora") {
        header.refuse("it is a GGUF file, but no LoRA adapter");
    }
    const auto architecture = meta_value(model.model, "general.architecture");
    if (const auto made_for = header.text("general.architecture").value_or("?"); made_for != architecture) {
        header.refuse("it was made for a model of architecture " + made_for + ", this one is " + architecture);
    }
    if (!std::isfinite(header.real_number("adapter.lora.alpha").value_or(0.0F))) {
        header.refuse("adapter.lora.alpha is not a number");
    }
    bool any = false;
    for (const GgufTensor &tensor : header.tensors()) {
        if (ends_with(tensor.name, ".lora_a")) {
            check_pair(header, tensor, model);
            any = true;
        }
    }
    if (!any) {
        header.refuse("it holds no LoRA tensors");
    }
}

llama_adapter_lora *load(const ModelHandle &model, const std::string &path) {
    const GgufHeader header(path);
    check_file(header, model);
    const auto mark = log::next_number();
    const std::lock_guard lock(registry());
    const ChecksThrow checks; // upstream's loader catches what they throw
    auto *adapter = llama_adapter_lora_init(model.model, path.c_str());
    if (adapter == nullptr) {
        header.refuse(log::errors_since(mark));
    }
    return adapter;
}

void require_same_memory(const ContextHandle &handle, bool keep_memory) {
    for (llama_seq_id id = 0; id < handle.scratch() && !keep_memory; ++id) {
        require(handle.kv->cells(id).empty(),
                "sequence " + std::to_string(id) +
                    " holds tokens that were computed otherwise: clear it first, or pass keep_memory=True");
    }
}

} // namespace

AdapterHandle::AdapterHandle(std::shared_ptr<ModelHandle> model_, std::string path_)
    : model(std::move(model_)), path(std::move(path_)), adapter(load(*model, path)) {}

AdapterHandle::~AdapterHandle() {
    const std::lock_guard lock(registry());
    llama_adapter_lora_free(adapter);
}

std::shared_ptr<Adapter> Adapter::load(const Model &model, const std::string &path) {
    require(path.find('\0') == std::string::npos, "the path holds a NUL character");
    return std::make_shared<Adapter>(std::make_shared<AdapterHandle>(model.handle(), path));
}

std::map<std::string, std::string> Adapter::metadata() const {
    const auto handle = owned_.get();
    std::map<std::string, std::string> found;
    for (int i = 0; i < llama_adapter_meta_count(handle->adapter); ++i) {
        const auto key = get_string([&](char *buffer, std::size_t size) {
            return llama_adapter_meta_key_by_index(handle->adapter, i, buffer, size);
        });
        found[key] = get_string([&](char *buffer, std::size_t size) {
            return llama_adapter_meta_val_str_by_index(handle->adapter, i, buffer, size);
        });
    }
    return found;
}

std::vector<llama_token> Adapter::invocation_tokens() const {
    const auto handle = owned_.get();
    const auto *tokens = llama_adapter_get_alora_invocation_tokens(handle->adapter);
    return {tokens, tokens + llama_adapter_get_alora_n_invocation_tokens(handle->adapter)};
}

void set_adapters(const Context &context, const std::vector<ScaledAdapter> &adapters, bool keep_memory) {
    const auto handle = context.handle();
    decltype(handle->adapters) chosen;
    std::vector<llama_adapter_lora *> pointers;
    std::vector<float> scales;
    for (const auto &[adapter, scale] : adapters) {
        require(adapter != nullptr, "an adapter is missing");
        require(std::isfinite(scale), "the scale of an adapter must be a number");
        const auto held = adapter->handle();
        require(held->model == handle->model, "the adapter was loaded for another model: load it for this one");
        require(std::find(pointers.begin(), pointers.end(), held->adapter) == pointers.end(),
                "the same adapter is given twice: add up its scales");
        chosen.emplace_back(held, scale);
        pointers.push_back(held->adapter);
        scales.push_back(scale);
    }
    const std::lock_guard lock(handle->mutex);
    if (chosen != handle->adapters) {
        require_same_memory(*handle, keep_memory);
        llama_set_adapters_lora(handle->context, pointers.data(), pointers.size(), scales.data());
        handle->adapters.swap(chosen); // the former ones go only now that upstream has let go of them
    }
}

std::vector<ScaledAdapter> adapters(const Context &context) {
    const auto handle = context.handle();
    const std::lock_guard lock(handle->mutex);
    std::vector<ScaledAdapter> found;
    for (const auto &[adapter, scale] : handle->adapters) {
        found.emplace_back(std::make_shared<Adapter>(adapter), scale);
    }
    return found;
}

void set_control_vector(const Context &context, const ControlVector &vector, int first, int last, bool keep_memory) {
    const auto handle = context.handle();
    const auto *model = handle->model->model;
    const int n_layer = llama_model_n_layer(model);
    const int n_embd = llama_model_n_embd(model);
    require(vector.n_layer == static_cast<std::size_t>(n_layer) && vector.n_embd == static_cast<std::size_t>(n_embd),
            "a control vector for this model has the shape (" + std::to_string(n_layer) + ", " +
                std::to_string(n_embd) + ")");
    require(1 <= first && first <= last && last < n_layer,
            "first_layer and last_layer must be 1 to " + std::to_string(n_layer - 1) + ", in order");
    const auto *end = vector.rows + vector.n_layer * vector.n_embd;
    require(std::all_of(vector.rows, end, [](float value) { return std::isfinite(value); }),
            "the control vector holds values that are not numbers");
    const std::lock_guard lock(handle->mutex);
    require_same_memory(*handle, keep_memory);
    llama_synchronize(handle->context);
    const auto *second = vector.rows + vector.n_embd; // upstream's buffer begins at layer 1
    if (llama_set_adapter_cvec(handle->context, second, static_cast<std::size_t>(end - second), n_embd, first, last)) {
        throw Error(ErrorKind::not_enough_memory, "there is no memory for a control vector");
    }
}

void clear_control_vector(const Context &context, bool keep_memory) {
    const auto handle = context.handle();
    const std::lock_guard lock(handle->mutex);
    require_same_memory(*handle, keep_memory);
    llama_set_adapter_cvec(handle->context, nullptr, 0, 0, 0, 0);
}

} // namespace ipyllama
