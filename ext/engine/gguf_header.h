// The header of a GGUF file: what is looked at before llama.cpp loads it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ggml.h"
#include "gguf.h"

namespace ipyllama {

struct GgufTensor {
    std::string name;
    ggml_type type;
    std::array<std::int64_t, GGML_MAX_DIMS> shape; // row length first; 1 beyond the last dimension
};

class GgufHeader {
  public:
    // Throws bad_model_file: no such file, not a GGUF, or tensors that reach beyond its end.
    explicit GgufHeader(const std::string &path);

    // Metadata; empty where there is no such key or where its value is of another type.
    std::optional<std::string> text(const std::string &key) const;
    std::optional<std::int64_t> whole_number(const std::string &key) const; // 32 bits, as hyperparameters are
    std::optional<float> real_number(const std::string &key) const;
    std::optional<bool> truth(const std::string &key) const;
    std::vector<std::string> keys() const;

    const std::vector<GgufTensor> &tensors() const { return tensors_; }
    const GgufTensor *tensor(const std::string &name) const; // null if there is none

    // Throws bad_model_file with the path and what is wrong with the file.
    [[noreturn]] void refuse(const std::string &reason) const;

  private:
    std::string path_;
    std::unique_ptr<gguf_context, decltype(&gguf_free)> gguf_;
    std::vector<GgufTensor> tensors_;

    std::int64_t find(const std::string &key, gguf_type type) const;
};

} // namespace ipyllama
