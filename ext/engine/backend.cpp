#include "backend.h"

#include <mutex>

#include "ggml-backend.h"
#include "llama.h"

#include "checks.h"
#include "log.h"

namespace ipyllama {

Backend::Backend() {
    log::install();
    ChecksThrow::install();
    llama_backend_init();
}

Backend::~Backend() {
    llama_backend_free();
}

std::shared_ptr<Backend> Backend::shared() {
    static std::mutex mutex;
    static std::weak_ptr<Backend> current;
    const std::lock_guard lock(mutex);
    auto backend = current.lock();
    if (!backend) {
        backend = std::shared_ptr<Backend>(new Backend);
        current = backend;
    }
    return backend;
}

std::string system_info() {
    log::install();
    return llama_print_system_info();
}

std::vector<std::pair<std::string, std::string>> devices() {
    log::install();
    std::vector<std::pair<std::string, std::string>> found;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        auto *device = ggml_backend_dev_get(i);
        found.emplace_back(ggml_backend_dev_name(device), ggml_backend_dev_description(device));
    }
    return found;
}

} // namespace ipyllama
