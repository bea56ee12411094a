#include "gguf_header.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "checks.h"
#include "error.h"
#include "log.h"

namespace ipyllama {
namespace {

// Only the header: a null `ctx` asks for no tensors.
gguf_context *read(const std::string &path) {
    const ChecksThrow checks;
    return gguf_init_from_file(path.c_str(), {/* no_alloc */ true, /* ctx */ nullptr});
}

} // namespace

GgufHeader::GgufHeader(const std::string &path) : path_(path), gguf_(nullptr, gguf_free) {
    std::error_code failed;
    const auto size = std::filesystem::file_size(std::filesystem::u8path(path), failed);
    if (failed) {
        refuse(failed.message());
    }
    const auto mark = log::next_number();
    gguf_.reset(read(path));
    if (!gguf_) {
        refuse("it is no complete GGUF file: " + log::errors_since(mark));
    }
    const auto *gguf = gguf_.get();
    for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf); ++i) {
        GgufTensor tensor{gguf_get_tensor_name(gguf, i), gguf_get_tensor_type(gguf, i), {}};
        std::copy_n(gguf_get_tensor_ne(gguf, i), GGML_MAX_DIMS, tensor.shape.begin());
        const auto begin = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, i);
        if (begin > size || gguf_get_tensor_size(gguf, i) > size - begin) {
            refuse("it ends before its tensor " + tensor.name + " does");
        }
        tensors_.push_back(std::move(tensor));
    }
}

void GgufHeader::refuse(const std::string &reason) const {
    throw Error(ErrorKind::bad_model_file, path_ + " cannot be loaded: " + reason);
}

std::int64_t GgufHeader::find(const std::string &key, gguf_type type) const {
    const auto found = gguf_find_key(gguf_.get(), key.c_str());
    return found >= 0 && gguf_get_kv_type(gguf_.get(), found) == type ? found : -1;
}

std::optional<std::string> GgufHeader::text(const std::string &key) const {
    const auto found = find(key, GGUF_TYPE_STRING);
    return found < 0 ? std::nullopt : std::optional<std::string>(gguf_get_val_str(gguf_.get(), found));
}

std::optional<std::int64_t> GgufHeader::whole_number(const std::string &key) const {
    if (const auto found = find(key, GGUF_TYPE_UINT32); found >= 0) {
        return gguf_get_val_u32(gguf_.get(), found);
    }
    const auto found = find(key, GGUF_TYPE_INT32);
    return found < 0 ? std::nullopt : std::optional<std::int64_t>(gguf_get_val_i32(gguf_.get(), found));
}

std::optional<float> GgufHeader::real_number(const std::string &key) const {
    const auto found = find(key, GGUF_TYPE_FLOAT32);
    return found < 0 ? std::nullopt : std::optional<float>(gguf_get_val_f32(gguf_.get(), found));
}

std::optional<bool> GgufHeader::truth(const std::string &key) const {
    const auto found = find(key, GGUF_TYPE_BOOL);
    return found < 0 ? std::nullopt : std::optional<bool>(gguf_get_val_bool(gguf_.get(), found));
}

std::vector<std::string> GgufHeader::keys() const {
    std::vector<std::string> found;
    for (std::int64_t i = 0; i < gguf_get_n_kv(gguf_.get()); ++i) {
        found.emplace_back(gguf_get_key(gguf_.get(), i));
    }
    return found;
}

const GgufTensor *GgufHeader::tensor(const std::string &name) const {
    const auto found =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const GgufTensor &tensor) { return tensor.name == name; });
    return found == tensors_.end() ? nullptr : &*found;
}

} // namespace ipyllama
