#include "context_options.h"

#include <map>

#include "error.h"

namespace ipyllama {
namespace {

constexpr std::uint32_t max_context = 1U << 24;

ggml_type cache_type(const std::string &name) {
    static const std::map<std::string, ggml_type> types = {
        {"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},   {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0},
        {"q5_1", GGML_TYPE_Q5_1}, {"q5_0", GGML_TYPE_Q5_0}, {"q4_1", GGML_TYPE_Q4_1}, {"q4_0", GGML_TYPE_Q4_0},
    };
    const auto found = types.find(name);
    require(found != types.end(), "unknown KV type '" + name + "': use f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0");
    return found->second;
}

enum llama_pooling_type pooling_from(const std::string &name) {
    static const std::map<std::string, enum llama_pooling_type> types = {
        {"unspecified", LLAMA_POOLING_TYPE_UNSPECIFIED},
        {"none", LLAMA_POOLING_TYPE_NONE},
        {"mean", LLAMA_POOLING_TYPE_MEAN},
        {"cls", LLAMA_POOLING_TYPE_CLS},
        {"last", LLAMA_POOLING_TYPE_LAST},
        {"rank", LLAMA_POOLING_TYPE_RANK},
    };
    const auto found = types.find(name);
    require(found != types.end(), "unknown pooling '" + name + "': use none, mean, cls, last, rank or unspecified");
    return found->second;
}

void check_options(const ContextOptions &options) {
    const auto most_sequences = llama_max_parallel_sequences() - 1; // one is ours, for copies
    require(options.n_ctx > 0 && options.n_ctx <= max_context, "n_ctx must be 1 to " + std::to_string(max_context));
    require(options.n_batch > 0 && options.n_batch <= max_context,
            "n_batch must be 1 to " + std::to_string(max_context));
    require(options.n_ubatch <= options.n_batch, "n_ubatch must not be over n_batch");
    require(options.n_seq_max > 0 && options.n_seq_max <= most_sequences,
            "n_seq_max must be 1 to " + std::to_string(most_sequences));
    check_threads(options.n_threads);
    check_threads(options.n_threads_batch == 0 ? 1 : options.n_threads_batch);
    require(options.flash_attention >= -1 && options.flash_attention <= 1, "flash_attention must be -1, 0 or 1");
    require(options.rope_freq_base >= 0 && options.rope_freq_base < 1e12F, "rope_freq_base must be 0 or more");
    require(options.rope_freq_scale >= 0 && options.rope_freq_scale < 1e6F, "rope_freq_scale must be 0 or more");
}

// llama.cpp sizes its buffers with a batch of n_ubatch tokens, rounded up to a multiple of n_seq_max; where it has to
// round, taking the mean fails. More sequences than asked for cost next to nothing.
void make_room_for_means(llama_context_params &params) {
    params.n_ubatch = std::min(params.n_ubatch, params.n_ctx);
    for (auto n = params.n_seq_max; n <= llama_max_parallel_sequences(); ++n) {
        if (params.n_ubatch % n == 0) {
            params.n_seq_max = n;
            return;
        }
    }
    require(params.n_ubatch > params.n_seq_max,
            "n_ubatch and n_ctx must be over n_seq_max where embeddings are pooled");
    params.n_ubatch -= params.n_ubatch % params.n_seq_max;
}

} // namespace

bool on_abort_check(void *abort) {
    return static_cast<std::atomic<bool> *>(abort)->load();
}

void check_threads(int n_threads) {
    require(n_threads > 0 && n_threads <= GGML_MAX_N_THREADS,
            "n_threads must be 1 to " + std::to_string(GGML_MAX_N_THREADS));
}

llama_context_params to_params(const ContextOptions &options, std::atomic<bool> &abort) {
    check_options(options);
    auto params = llama_context_default_params();
    params.n_ctx = options.n_ctx;
    params.n_batch = options.n_batch;
    params.n_ubatch = options.n_ubatch == 0 ? options.n_batch : options.n_ubatch;
    params.n_seq_max = options.n_seq_max + 1;
    params.n_threads = options.n_threads;
    params.n_threads_batch = options.n_threads_batch == 0 ? options.n_threads : options.n_threads_batch;
    params.flash_attn_type = static_cast<llama_flash_attn_type>(options.flash_attention);
    params.type_k = cache_type(options.type_k);
    params.type_v = cache_type(options.type_v);
    params.swa_full = options.swa_full;
    params.offload_kqv = options.offload_kqv;
    params.kv_unified = true;
    params.embeddings = options.embeddings;
    params.pooling_type = pooling_from(options.pooling);
    params.rope_freq_base = options.rope_freq_base;
    params.rope_freq_scale = options.rope_freq_scale;
    params.abort_callback = on_abort_check;
    params.abort_callback_data = &abort;
    if (options.embeddings && options.pooling != "none") {
        make_room_for_means(params);
    }
    return params;
}

} // namespace ipyllama
