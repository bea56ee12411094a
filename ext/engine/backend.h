// The process-wide part of llama.cpp: started by the first model, stopped with the last.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ipyllama {

class Backend {
  public:
    static std::shared_ptr<Backend> shared();
    ~Backend();
    Backend(const Backend &) = delete;
    Backend &operator=(const Backend &) = delete;

  private:
    Backend();
};

// Instruction sets and features that ggml was built with, upstream's one-line form.
std::string system_info();

// (name, description) of each compute device.
std::vector<std::pair<std::string, std::string>> devices();

} // namespace ipyllama
