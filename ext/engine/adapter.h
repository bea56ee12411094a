// LoRA adapters and control vectors: small changes to a model that a context puts on and takes off.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "context.h"

namespace ipyllama {

struct AdapterHandle {
    AdapterHandle(std::shared_ptr<ModelHandle> model_, std::string path_);
    ~AdapterHandle();
    AdapterHandle(const AdapterHandle &) = delete;
    AdapterHandle &operator=(const AdapterHandle &) = delete;

    std::shared_ptr<ModelHandle> model;
    std::string path;
    llama_adapter_lora *adapter;
};

class Adapter {
  public:
    // Throws bad_model_file: damaged, no LoRA adapter, or made for another model.
    static std::shared_ptr<Adapter> load(const Model &model, const std::string &path);
    explicit Adapter(std::shared_ptr<AdapterHandle> handle)
        : owned_("this adapter is closed: load it again", std::move(handle)) {}

    std::shared_ptr<AdapterHandle> handle() const { return owned_.get(); }
    // A context that uses it keeps it alive until it is taken off there.
    void close() { owned_.close(); }
    bool closed() const { return owned_.closed(); }

    std::string path() const { return owned_.get()->path; }
    std::map<std::string, std::string> metadata() const;
    // Of an "activated" adapter: the tokens from which on it is meant to work. Empty for others.
    std::vector<llama_token> invocation_tokens() const;

  private:
    Owned<AdapterHandle> owned_;
};

using ScaledAdapter = std::pair<std::shared_ptr<Adapter>, float>;

// From here on the context computes with exactly these, their effects added up. What its sequences hold was computed
// without them: so no sequence may hold tokens, unless `keep_memory` says that this is meant.
void set_adapters(const Context &context, const std::vector<ScaledAdapter> &adapters, bool keep_memory);
std::vector<ScaledAdapter> adapters(const Context &context);

// What is added to the output of each layer: one row of `n_embd` numbers per layer of the model.
struct ControlVector {
    const float *rows;
    std::size_t n_layer;
    std::size_t n_embd;
};

// Works in layers first..last, both included; 1 is the first that upstream lets be changed. Same rule for memory.
void set_control_vector(const Context &context, const ControlVector &vector, int first, int last, bool keep_memory);
void clear_control_vector(const Context &context, bool keep_memory);

} // namespace ipyllama
