#include "context.h"

#include <map>

#include "checks.h"
#include "log.h"

namespace ipyllama {
namespace {

constexpr std::uint32_t max_context = 1U << 24;

bool on_abort_check(void *user_data) {
    return static_cast<std::atomic<bool> *>(user_data)->load();
}

ggml_type cache_type(const std::string &name) {
    static const std::map<std::string, ggml_type> types = {
        {"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},   {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0},
        {"q5_1", GGML_TYPE_Q5_1}, {"q5_0", GGML_TYPE_Q5_0}, {"q4_1", GGML_TYPE_Q4_1}, {"q4_0", GGML_TYPE_Q4_0},
    };
    const auto found = types.find(name);
    require(found != types.end(), "unknown KV type '" + name + "': use f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0");
    return found->second;
}

llama_context_params to_params(const ContextOptions &options, std::atomic<bool> &abort) {
    require(options.n_ctx > 0 && options.n_ctx <= max_context, "n_ctx must be 1 to " + std::to_string(max_context));
    require(options.n_batch > 0 && options.n_batch <= max_context, "n_batch must be at least 1");
    require(options.n_seq_max > 0 && options.n_seq_max <= llama_max_parallel_sequences(),
            "n_seq_max must be 1 to " + std::to_string(llama_max_parallel_sequences()));
    require(options.n_threads > 0 && options.n_threads <= GGML_MAX_N_THREADS,
            "n_threads must be 1 to " + std::to_string(GGML_MAX_N_THREADS));
    require(options.flash_attention >= -1 && options.flash_attention <= 1, "flash_attention must be -1, 0 or 1");
    auto params = llama_context_default_params();
    params.n_ctx = options.n_ctx;
    params.n_batch = options.n_batch;
    params.n_ubatch = options.n_batch;
    params.n_seq_max = options.n_seq_max;
    params.n_threads = options.n_threads;
    params.n_threads_batch = options.n_threads;
    params.flash_attn_type = static_cast<llama_flash_attn_type>(options.flash_attention);
    params.type_k = cache_type(options.type_k);
    params.type_v = cache_type(options.type_v);
    params.swa_full = options.swa_full;
    params.kv_unified = true;
    params.abort_callback = on_abort_check;
    params.abort_callback_data = &abort;
    return params;
}

} // namespace

ContextHandle::ContextHandle(std::shared_ptr<ModelHandle> model_, const ContextOptions &options)
    : model(std::move(model_)), context(nullptr), sequence_taken(options.n_seq_max, false) {
    const auto params = to_params(options, abort);
    const auto mark = log::next_number();
    const ChecksThrow checks; // upstream catches what they throw
    context = llama_init_from_model(model->model, params);
    if (context == nullptr) {
        const std::string why = log::errors_since(mark);
        if (!why.empty() && why.find("alloc") == std::string::npos) { // options that do not suit this model
            throw Error(ErrorKind::bad_argument, "llama.cpp cannot make this context: " + why);
        }
        throw Error(ErrorKind::not_enough_memory, "llama.cpp cannot make a context of " +
                                                      std::to_string(options.n_ctx) + " tokens (" + why +
                                                      "). Ask for a smaller n_ctx.");
    }
}

llama_memory_t ContextHandle::memory() const {
    llama_memory_t memory = llama_get_memory(context);
    require(memory != nullptr, "this model keeps no KV memory: it encodes text and cannot generate");
    return memory;
}

int ContextHandle::decode(llama_seq_id sequence, llama_pos p0, const std::vector<llama_token> &tokens) {
    std::vector<llama_token> ids = tokens; // llama_batch wants mutable pointers
    std::vector<llama_pos> positions(ids.size());
    std::vector<int32_t> counts(ids.size(), 1);
    std::vector<llama_seq_id *> sequences(ids.size(), &sequence);
    std::vector<int8_t> outputs(ids.size(), 0);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        positions[i] = p0 + static_cast<llama_pos>(i);
    }
    outputs.back() = 1;
    logits_of = -1;
    const int status = llama_decode(context, {static_cast<int32_t>(ids.size()), ids.data(), nullptr, positions.data(),
                                              counts.data(), sequences.data(), outputs.data()});
    if (status == 0) {
        logits_of = sequence;
    }
    return status;
}

Context::Context(const Model &model, const ContextOptions &options)
    : owned_("this context is closed", std::make_shared<ContextHandle>(model.handle(), options)) {}

void Context::close() {
    if (const auto handle = owned_.close()) {
        handle->abort = true;
    }
}

std::uint32_t Context::n_ctx() const {
    return llama_n_ctx(owned_.get()->context);
}
std::uint32_t Context::n_batch() const {
    return llama_n_batch(owned_.get()->context);
}
std::uint32_t Context::n_seq_max() const {
    return llama_n_seq_max(owned_.get()->context);
}
int Context::n_threads() const {
    return llama_n_threads(owned_.get()->context);
}

} // namespace ipyllama
