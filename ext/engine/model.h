// Weights, vocabulary and metadata of one GGUF file.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llama.h"

#include "backend.h"
#include "owned.h"

namespace ipyllama {

struct ModelOptions {
    int n_gpu_layers = -1; // negative: all layers, where there is a GPU
    bool use_mmap = true;
    bool vocab_only = false;
    bool check_tensors = false;
};

// Shared between a running load and whoever watches it.
struct LoadProgress {
    std::atomic<float> fraction{0.0F}; // 0 to 1
    std::atomic<bool> cancelled{false};
};

struct ModelHandle {
    ModelHandle(std::shared_ptr<Backend> backend_, llama_model *model_) : backend(std::move(backend_)), model(model_) {}
    ~ModelHandle();
    ModelHandle(const ModelHandle &) = delete;
    ModelHandle &operator=(const ModelHandle &) = delete;

    const llama_vocab *vocab() const { return llama_model_get_vocab(model); }
    void check_token(llama_token token) const;
    std::string architecture() const; // as in the file: llama, gemma3 ...
    std::string pooling() const;      // as in the file: none, mean, cls, last, rank; unspecified where it says nothing
    llama_pos n_positions() const;    // as many as were learned, where each has a vector of its own (GPT-2, BERT)
    std::uint32_t n_cls_out() const;  // outputs of the classifier, 0 if there is none

    std::shared_ptr<Backend> backend;
    llama_model *model;
};

class Model {
  public:
    // Throws bad_model_file with llama.cpp's own words, aborted if `progress` was cancelled.
    static std::shared_ptr<Model> load(const std::string &path, const ModelOptions &options,
                                       const std::shared_ptr<LoadProgress> &progress);
    explicit Model(std::shared_ptr<ModelHandle> handle)
        : owned_("this model is closed: load it again", std::move(handle)) {}

    std::shared_ptr<ModelHandle> handle() const { return owned_.get(); }
    void close() { owned_.close(); }
    bool closed() const { return owned_.closed(); }

    std::vector<llama_token> tokenize(const std::string &text, bool add_special, bool parse_special) const;
    std::string detokenize(const std::vector<llama_token> &tokens, bool special) const; // bytes, not always UTF-8
    std::string piece(llama_token token, bool special) const;
    bool is_eog(llama_token token) const;
    bool is_control(llama_token token) const;

    std::map<std::string, std::string> metadata() const;
    std::optional<std::string> chat_template(const std::optional<std::string> &name) const;
    std::string description() const;
    std::optional<std::string> cls_label(std::uint32_t i) const;

  private:
    Owned<ModelHandle> owned_;
};

} // namespace ipyllama
