// Images and sounds as input: a projector turns them into embeddings that a model reads like tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "llama.h"
#include "mtmd.h"

#include "model.h"
#include "owned.h"

namespace ipyllama {

struct MultimodalOptions {
    int n_threads = 1;
    bool use_gpu = true;
    int image_min_tokens = 0; // for projectors that take images of any size; 0: as the file says
    int image_max_tokens = 0;
};

struct Image {
    const std::uint8_t *rgb; // rows from the top, pixels from the left, three bytes each
    std::size_t width;
    std::size_t height;
};

struct Audio {
    const float *samples; // mono, at the projector's sample rate, -1 to 1
    std::size_t n_samples;
};

using Medium = std::variant<Image, Audio>;

// Throw bad_argument for what is empty or too large. The data is not looked at.
void check_size(const Image &image);
void check_size(const Audio &audio);

struct MultimodalHandle {
    MultimodalHandle(std::shared_ptr<ModelHandle> model_, const std::string &path, const MultimodalOptions &options);
    MultimodalHandle(const MultimodalHandle &) = delete;
    MultimodalHandle &operator=(const MultimodalHandle &) = delete;

    std::shared_ptr<ModelHandle> model; // outlives `context`
    mtmd::context_ptr context;
    std::mutex mutex; // encoding writes into the context
};

// A piece of a prompt: some tokens of text, or the part of one medium that is encoded at once. Immutable.
class Chunk {
  public:
    Chunk(std::weak_ptr<MultimodalHandle> origin, std::shared_ptr<const mtmd_input_chunk> chunk, std::string id)
        : origin_(std::move(origin)), chunk_(std::move(chunk)), id_(std::move(id)) {}

    mtmd_input_chunk_type type() const { return mtmd_input_chunk_get_type(chunk_.get()); }
    std::vector<llama_token> tokens() const; // of text; empty for media
    std::size_t n_tokens() const { return mtmd_input_chunk_get_n_tokens(chunk_.get()); }
    // Less than n_tokens where positions of an image are two-dimensional (M-RoPE).
    llama_pos n_positions() const { return mtmd_input_chunk_get_n_pos(chunk_.get()); }
    // What is in it: the SHA-256 of its medium, and which part of it this is. Empty for text.
    const std::string &id() const { return id_; }

    const mtmd_input_chunk *get() const { return chunk_.get(); }
    bool comes_from(const std::shared_ptr<MultimodalHandle> &handle) const { return origin_.lock() == handle; }

  private:
    std::weak_ptr<MultimodalHandle> origin_;
    std::shared_ptr<const mtmd_input_chunk> chunk_;
    std::string id_;
};

class Multimodal {
  public:
    // Throws bad_model_file: damaged, no projector, or made for another model.
    static std::shared_ptr<Multimodal> load(const Model &model, const std::string &path,
                                            const MultimodalOptions &options);
    explicit Multimodal(std::shared_ptr<MultimodalHandle> handle)
        : owned_("this projector is closed: load it again", std::move(handle)) {}

    std::shared_ptr<MultimodalHandle> handle() const { return owned_.get(); }
    void close() { owned_.close(); }
    bool closed() const { return owned_.closed(); }

    bool supports_vision() const { return mtmd_support_vision(owned_.get()->context.get()); }
    bool supports_audio() const { return mtmd_support_audio(owned_.get()->context.get()); }
    int audio_sample_rate() const; // Hz; 0 without audio
    std::string marker() const { return mtmd_get_marker(owned_.get()->context.get()); }

    // The n-th marker in the text stands for the n-th medium.
    std::vector<Chunk> tokenize(const std::string &text, const std::vector<Medium> &media, bool add_special,
                                bool parse_special) const;
    // The embeddings of an image or sound, n_tokens rows of n_embd() numbers. One step, which cannot be aborted.
    std::vector<float> encode(const Chunk &chunk) const;
    std::size_t n_embd() const { return static_cast<std::size_t>(llama_model_n_embd_inp(owned_.get()->model->model)); }

  private:
    Owned<MultimodalHandle> owned_;
};

} // namespace ipyllama
