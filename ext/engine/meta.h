// Reading strings out of upstream's getters.
#pragma once

#include <string>
#include <vector>

#include "llama.h"

namespace ipyllama {

// Calls `get(buffer, size)`, which returns the full length, whatever the buffer holds; below 0 means "".
template <typename Get> std::string get_string(Get get) {
    std::vector<char> small(256);
    const int n = get(small.data(), small.size());
    if (n < 0) {
        return "";
    }
    if (static_cast<std::size_t>(n) < small.size()) {
        return {small.data(), static_cast<std::size_t>(n)};
    }
    std::vector<char> large(static_cast<std::size_t>(n) + 1);
    get(large.data(), large.size());
    return {large.data(), static_cast<std::size_t>(n)};
}

// A value of the model's metadata as text; "" if there is none.
inline std::string meta_value(const llama_model *model, const std::string &key) {
    return get_string(
        [&](char *buffer, std::size_t size) { return llama_model_meta_val_str(model, key.c_str(), buffer, size); });
}

} // namespace ipyllama
