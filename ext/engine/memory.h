// The memory of a whole context.
#pragma once

#include <map>
#include <memory>

#include "context.h"

namespace ipyllama {

class Memory {
  public:
    explicit Memory(std::shared_ptr<Context> context) : context_(std::move(context)) {}

    void clear(bool data); // of all sequences; `data`: also set the buffers to zero
    std::size_t used() const;
    std::size_t total() const;
    std::map<llama_seq_id, std::size_t> counts() const; // tokens by sequence number
    bool can_shift() const;
    // Evaluates four tokens the first time, in memory that is free; the logits of the last step are lost.
    Capability capability() const;

  private:
    std::shared_ptr<Context> context_;
};

} // namespace ipyllama
