#include "projector.h"

#include <algorithm>

namespace ipyllama {
namespace {

struct Range {
    const char *key; // the end of it
    std::int64_t least;
    std::int64_t most;
};

// Upstream divides by some of these, and sizes buffers by others. The limits lie far beyond any model.
constexpr Range ranges[] = {
    {".embedding_length", 1, 1 << 16},
    {".feed_forward_length", 0, 1 << 20},
    {".block_count", 0, 1 << 10},
    {".projection_dim", 0, 1 << 20},
    {".head_count", 1, 1 << 10},
    {".head_count_kv", 1, 1 << 10},
    {".head_dim", 1, 1 << 12},
    {".expert_used_count", 1, 1 << 10},
    {".image_size", 0, 1 << 13},
    {".patch_size", 1, 1 << 10},
    {".preproc_image_size", 0, 1 << 14},
    {".image_min_pixels", 0, 1 << 28},
    {".image_max_pixels", 0, 1 << 28},
    {".preproc_min_tiles", 0, 1 << 8},
    {".preproc_max_tiles", 1, 1 << 8},
    {".scale_factor", 1, 1 << 6},
    {".spatial_merge_size", 1, 1 << 6},
    {".query_side", 1, 1 << 8},
    {".window_side", 1, 1 << 8},
    {".window_size", 1, 1 << 12},
    {".n_wa_pattern", 0, 1 << 10},
    {".num_mel_bins", 1, 1 << 12},
    {".stack_factor", 1, 1 << 10},
    {".chunk_size", 1, 1 << 13},
    {".conv_kernel_size", 1, 1 << 10},
    {".max_pos_emb", 1, 1 << 16},
    {".downsample_rate", 1, 1 << 10},
    {".num_quantizers", 1, 1 << 8},
    {".local_block_count", 0, 1 << 10},
    {".local_group_size", 1, 1 << 10},
    {".subsampling_factor", 1, 1 << 6},
    {"clip.minicpmv_query_num", 0, 1 << 12},
    {"clip.minicpmv_version", 0, 1 << 20},
};

// Whisper's encoder: 30 s of sound are 3,000 frames, halved by its second convolution.
constexpr std::int64_t n_frames = 3000;
// MiniCPM's position table is a grid of this many buckets each way.
constexpr std::int64_t n_buckets = 70;

bool ends_with(const std::string &text, const std::string &end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

template <std::size_t n> bool any_of(const std::string &type, const char *const (&types)[n]) {
    return std::find(types, types + n, type) != types + n;
}

void check_numbers(const GgufHeader &header) {
    for (const std::string &key : header.keys()) {
        const auto value = key.rfind("clip.", 0) == 0 ? header.whole_number(key) : std::nullopt;
        if (!value) {
            continue;
        }
        for (const Range &range : ranges) {
            if (ends_with(key, range.key) && (*value < range.least || *value > range.most)) {
                header.refuse(key + " is " + std::to_string(*value));
            }
        }
    }
}

// Biases, norms and the like must be f32; nothing may hold whole numbers or doubles.
void check_types(const GgufHeader &header) {
    for (const GgufTensor &tensor : header.tensors()) {
        const bool is_vector = tensor.shape[1] == 1 && tensor.shape[2] == 1 && tensor.shape[3] == 1;
        const bool is_real = tensor.type == GGML_TYPE_F32 || tensor.type == GGML_TYPE_F16 ||
                             tensor.type == GGML_TYPE_BF16 || ggml_is_quantized(tensor.type);
        if (!is_real || (is_vector && tensor.type != GGML_TYPE_F32)) {
            header.refuse(tensor.name + " is of type " + ggml_type_name(tensor.type));
        }
        if (*std::min_element(tensor.shape.begin(), tensor.shape.end()) < 1) {
            header.refuse(tensor.name + " is empty");
        }
    }
}

// Upstream asks for these "if they are there", and then takes for granted that they are.
void check_present(const GgufHeader &header, const std::string &vision, const std::string &audio) {
    const auto need = [&](const std::string &name) {
        if (header.tensor(name) == nullptr) {
            header.refuse("it has no tensor " + name);
        }
    };
    const bool two_frames = any_of(vision, {"qwen2vl_merger", "qwen2.5vl_merger", "qwen2.5o", "qwen3vl_merger"});
    const bool biases = any_of(vision, {"qwen2vl_merger", "qwen2.5vl_merger", "qwen2.5o", "youtuvl"});
    const bool fused_bias = any_of(vision, {"qwen3vl_merger", "cogvlm"});
    if (!vision.empty() && vision != "gemma3nv") { // that one begins with other convolutions
        need("v.patch_embd.weight");
    }
    if (two_frames) {
        need("v.patch_embd.weight.1");
    }
    if (any_of(audio, {"ultravox", "voxtral", "qwen2a", "glma", "meralion", "musicflamingo"})) {
        need("a.position_embd.weight");
    }
    const std::string output = ".attn_out.weight";
    for (const GgufTensor &tensor : header.tensors()) {
        if (!ends_with(tensor.name, output) || audio == "gemma4a") { // that one has layers without attention
            continue;
        }
        const auto block = tensor.name.substr(0, tensor.name.size() - output.size());
        const bool fused = header.tensor(block + ".attn_qkv.weight") != nullptr;
        for (const char *part : {".attn_q", ".attn_k", ".attn_v"}) {
            if (!fused) {
                need(block + part + ".weight");
            }
            if (biases && block[0] == 'v') {
                need(block + part + ".bias");
            }
        }
        if (fused_bias && block[0] == 'v') {
            need(block + ".attn_qkv.bias");
        }
    }
}

// Position embeddings: those that are looked up by row need a row for every patch, and those that are added must be
// as many as the patches, or ggml repeats them.
void check_positions(const GgufHeader &header, const std::string &type) {
    const GgufTensor *table = header.tensor("v.position_embd.weight");
    const auto n_rows = table == nullptr ? 0 : table->shape[1];
    const auto patch = header.whole_number("clip.vision.patch_size").value_or(1);
    const auto side = header.whole_number("clip.vision.image_size").value_or(0) / patch;
    const auto n_patches = side * side + (header.tensor("v.class_embd") != nullptr ? 1 : 0);
    const bool added = any_of(type, {"gemma3", "idefics3", "janus_pro"});
    const bool looked_up = any_of(type, {"mlp", "ldp", "ldpv2", "adapter"});
    const bool buckets = any_of(type, {"resampler", "minicpmv4_6"});
    if ((added && n_rows != n_patches) || (looked_up && n_rows < n_patches) ||
        (buckets && n_rows < n_buckets * n_buckets)) {
        header.refuse("v.position_embd.weight has " + std::to_string(n_rows) + " rows for " +
                      std::to_string(buckets ? n_buckets * n_buckets : n_patches) + " patches");
    }
}

// Upstream foretells the number of audio tokens by one formula and computes it by another.
void check_stacking(const GgufHeader &header, const std::string &type) {
    const auto factor = header.whole_number("clip.audio.projector.stack_factor").value_or(1);
    const auto width = header.whole_number("clip.audio.embedding_length").value_or(1);
    if (!any_of(type, {"ultravox", "meralion"})) {
        return;
    }
    const auto foretold = (n_frames + factor - 1) / factor / 2;
    const auto stride = width * factor;
    const auto computed = factor == 1 ? n_frames / 2 : GGML_PAD(n_frames / 2 * width, stride) / stride;
    if (foretold != computed) {
        header.refuse("clip.audio.projector.stack_factor is " + std::to_string(factor) +
                      ", which llama.cpp cannot compute with");
    }
}

} // namespace

void check_projector(const GgufHeader &header) {
    if (header.text("general.architecture") != "clip") {
        header.refuse("it is a GGUF file, but no projector (mmproj)");
    }
    check_numbers(header);
    check_types(header);
    const auto common = header.text("clip.projector_type"); // files for one kind of medium have this one only
    const auto type = [&](const std::string &kind) {
        const bool present = header.truth("clip.has_" + kind + "_encoder").value_or(false);
        return present ? common.value_or(header.text("clip." + kind + ".projector_type").value_or("?")) : "";
    };
    const auto vision = type("vision"), audio = type("audio");
    check_present(header, vision, audio);
    check_positions(header, vision);
    check_stacking(header, audio);
}

} // namespace ipyllama
