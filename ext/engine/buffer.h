// Bytes of state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace ipyllama {

// Somebody else's, for the length of a call.
struct Bytes {
    const std::uint8_t *data;
    std::size_t size;
};

// Our own. They are not set to zero first: the copy touches each page anyway.
class Buffer {
  public:
    explicit Buffer(std::size_t size) : data_(new std::uint8_t[size]), size_(size) {}

    std::uint8_t *data() { return data_.get(); }
    std::size_t size() const { return size_; }
    Bytes bytes() const { return {data_.get(), size_}; }
    std::unique_ptr<std::uint8_t[]> release() { return std::move(data_); }

  private:
    std::unique_ptr<std::uint8_t[]> data_;
    std::size_t size_;
};

} // namespace ipyllama
