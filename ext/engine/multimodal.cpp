#include "multimodal.h"

#include <algorithm>
#include <cmath>

#include "checks.h"
#include "deep_stack.h"
#include "gguf_header.h"
#include "log.h"
#include "projector.h"
#include "sha256.h"

namespace ipyllama {
namespace {

constexpr std::size_t max_side = 1U << 14;
constexpr std::size_t max_pixels = 1U << 27;
constexpr std::size_t max_samples = 1U << 27;
constexpr int max_image_tokens = 1 << 16;

mtmd_context_params to_params(const MultimodalOptions &options) {
    require(options.n_threads > 0 && options.n_threads <= GGML_MAX_N_THREADS,
            "n_threads must be 1 to " + std::to_string(GGML_MAX_N_THREADS));
    require(options.image_min_tokens >= 0 && options.image_min_tokens <= max_image_tokens,
            "image_min_tokens must be 0 to " + std::to_string(max_image_tokens));
    require(options.image_max_tokens >= 0 && options.image_max_tokens <= max_image_tokens,
            "image_max_tokens must be 0 to " + std::to_string(max_image_tokens));
    require(options.image_max_tokens == 0 || options.image_min_tokens <= options.image_max_tokens,
            "image_min_tokens is more than image_max_tokens");
    auto params = mtmd_context_params_default();
    params.use_gpu = options.use_gpu;
    params.print_timings = false;
    params.n_threads = options.n_threads;
    params.image_min_tokens = options.image_min_tokens > 0 ? options.image_min_tokens : -1;
    params.image_max_tokens = options.image_max_tokens > 0 ? options.image_max_tokens : -1;
    return params;
}

std::size_t count(const std::string &text, const std::string &marker) {
    std::size_t n = 0;
    for (auto at = text.find(marker); at != std::string::npos; at = text.find(marker, at + marker.size())) {
        ++n;
    }
    return n;
}

mtmd::bitmap_ptr to_bitmap(const Image &image) {
    check_size(image);
    return mtmd::bitmap_ptr(
        mtmd_bitmap_init(static_cast<std::uint32_t>(image.width), static_cast<std::uint32_t>(image.height), image.rgb));
}

mtmd::bitmap_ptr to_bitmap(const Audio &audio) {
    check_size(audio);
    require(std::all_of(audio.samples, audio.samples + audio.n_samples, [](float x) { return std::isfinite(x); }),
            "the sound holds values that are not numbers");
    return mtmd::bitmap_ptr(mtmd_bitmap_init_from_audio(audio.n_samples, audio.samples));
}

// The first error since `mark`, without the names of upstream's functions: those that follow only pass it on.
std::string reason(std::uint64_t mark) {
    for (const log::Line &line : log::since(mark)) {
        if (line.level != GGML_LOG_LEVEL_ERROR || line.text.empty()) {
            continue;
        }
        std::string text = line.text;
        for (const std::string before : {"failed to load model '", "error: ", ": "}) {
            const auto at = text.find(before);
            if (at != std::string::npos) {
                const auto end = before.back() == '\'' ? text.find("': ", at) + 3 : at + before.size();
                text.erase(0, end);
                break;
            }
        }
        std::replace(text.begin(), text.end(), '\n', ' ');
        return text;
    }
    return "llama.cpp does not say why";
}

// Of the copy in the bitmap: nobody changes that one meanwhile.
std::string content_hash(const mtmd_bitmap *bitmap) {
    const bool is_audio = mtmd_bitmap_is_audio(bitmap);
    const std::string shape = std::string(is_audio ? "audio " : "image ") + std::to_string(mtmd_bitmap_get_nx(bitmap)) +
                              " x " + std::to_string(mtmd_bitmap_get_ny(bitmap)) + "\n";
    Sha256 hash;
    hash.update(shape.data(), shape.size());
    hash.update(mtmd_bitmap_get_data(bitmap), mtmd_bitmap_get_n_bytes(bitmap));
    return hash.hex_digest();
}

// Bitmaps whose upstream ids are their numbers, and their hashes: chunks come back with the former.
struct Bitmaps {
    std::vector<mtmd::bitmap_ptr> owners;
    std::vector<const mtmd_bitmap *> pointers;
    std::vector<std::string> hashes;

    explicit Bitmaps(const std::vector<Medium> &media) {
        for (const Medium &medium : media) {
            owners.push_back(std::visit([](const auto &any) { return to_bitmap(any); }, medium));
            auto *bitmap = owners.back().get();
            mtmd_bitmap_set_id(bitmap, std::to_string(hashes.size()).c_str());
            pointers.push_back(bitmap);
            hashes.push_back(content_hash(bitmap));
        }
    }
};

} // namespace

void check_size(const Image &image) {
    require(image.width > 0 && image.height > 0, "the image has no pixels");
    require(std::max(image.width, image.height) <= max_side && image.width * image.height <= max_pixels,
            "an image of " + std::to_string(image.width) + " x " + std::to_string(image.height) +
                " pixels is too large: make it smaller first");
}

void check_size(const Audio &audio) {
    require(audio.n_samples > 1, "the sound has no samples");
    require(audio.n_samples <= max_samples,
            "a sound of " + std::to_string(audio.n_samples) + " samples is too long: cut it first");
}

MultimodalHandle::MultimodalHandle(std::shared_ptr<ModelHandle> model_, const std::string &path,
                                   const MultimodalOptions &options)
    : model(std::move(model_)) {
    const auto params = to_params(options);
    require(llama_vocab_type(model->vocab()) != LLAMA_VOCAB_TYPE_NONE, "this model has no vocabulary");
    const GgufHeader header(path);
    check_projector(header);
    const auto mark = log::next_number();
    const ChecksThrow checks; // upstream's loader catches what they throw
    context.reset(mtmd_init_from_file(path.c_str(), model->model, params));
    if (!context) {
        header.refuse(reason(mark));
    }
}

std::shared_ptr<Multimodal> Multimodal::load(const Model &model, const std::string &path,
                                             const MultimodalOptions &options) {
    require(path.find('\0') == std::string::npos, "the path holds a NUL character");
    return std::make_shared<Multimodal>(std::make_shared<MultimodalHandle>(model.handle(), path, options));
}

int Multimodal::audio_sample_rate() const {
    return std::max(0, mtmd_get_audio_sample_rate(owned_.get()->context.get()));
}

std::vector<llama_token> Chunk::tokens() const {
    std::size_t n = 0;
    const auto *tokens = mtmd_input_chunk_get_tokens_text(chunk_.get(), &n);
    return {tokens, tokens + n};
}

std::vector<Chunk> Multimodal::tokenize(const std::string &text, const std::vector<Medium> &media, bool add_special,
                                        bool parse_special) const {
    const auto handle = owned_.get();
    const auto *context = handle->context.get();
    const auto n_markers = count(text, mtmd_get_marker(context));
    require(n_markers == media.size(), "the text has " + std::to_string(n_markers) + " markers (" +
                                           mtmd_get_marker(context) + ") for " + std::to_string(media.size()) +
                                           " images and sounds");
    for (const Medium &medium : media) {
        const bool is_image = std::holds_alternative<Image>(medium);
        require(is_image ? mtmd_support_vision(context) : mtmd_support_audio(context),
                is_image ? "this projector takes no images" : "this projector takes no sounds");
    }
    const Bitmaps bitmaps(media);
    const std::shared_ptr<mtmd_input_chunks> chunks(mtmd_input_chunks_init(), mtmd_input_chunks_free);
    const mtmd_input_text input = {text.data(), text.size(), add_special, parse_special};
    const auto mark = log::next_number();
    int status = 0;
    with_stack_for_text(text.size(), [&] {
        const ChecksThrow checks; // upstream catches what they throw
        status = mtmd_tokenize(context, chunks.get(), &input, bitmaps.pointers.data(), bitmaps.pointers.size());
    });
    require(status == 0, "llama.cpp cannot prepare the media: " + reason(mark));
    std::vector<Chunk> found;
    std::vector<int> n_parts(media.size(), 0);
    for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks.get()); ++i) {
        const auto *chunk = mtmd_input_chunks_get(chunks.get(), i);
        const char *number = mtmd_input_chunk_get_id(chunk); // null for text
        std::string id;
        if (number != nullptr) {
            const auto medium = static_cast<std::size_t>(std::stoul(number));
            id = bitmaps.hashes[medium] + ":" + std::to_string(n_parts[medium]++);
        }
        found.emplace_back(handle, std::shared_ptr<const mtmd_input_chunk>(chunks, chunk), std::move(id));
    }
    return found;
}

std::vector<float> Multimodal::encode(const Chunk &chunk) const {
    const auto handle = owned_.get();
    require(chunk.comes_from(handle), "this chunk was made by another projector: tokenize with this one");
    require(chunk.type() != MTMD_INPUT_CHUNK_TYPE_TEXT, "this chunk is text: there is nothing to encode");
    const std::lock_guard lock(handle->mutex);
    const auto mark = log::next_number();
    const ChecksThrow checks; // upstream catches what they throw
    if (mtmd_encode_chunk(handle->context.get(), chunk.get()) != 0) {
        throw Error(ErrorKind::decode, "llama.cpp cannot encode this: " + reason(mark));
    }
    const float *rows = mtmd_get_output_embd(handle->context.get());
    return {rows, rows + chunk.n_tokens() * n_embd()};
}

} // namespace ipyllama
