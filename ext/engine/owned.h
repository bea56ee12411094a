// Ownership that survives close() from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "error.h"

namespace ipyllama {

// A shared handle that can be let go early. Whoever called get() keeps the resource alive until its call
// returns, so close() never pulls it from under a running call: the last holder frees it.
template <typename T> class Owned {
  public:
    Owned(const char *if_closed, std::shared_ptr<T> handle) : if_closed_(if_closed), handle_(std::move(handle)) {}

    std::shared_ptr<T> get() const {
        const std::lock_guard lock(mutex_);
        if (!handle_) {
            throw Error(ErrorKind::closed, if_closed_);
        }
        return handle_;
    }

    // Returns what was held (null the second time), so that the caller decides on which thread it is freed.
    std::shared_ptr<T> close() {
        const std::lock_guard lock(mutex_);
        return std::exchange(handle_, nullptr);
    }

    bool closed() const {
        const std::lock_guard lock(mutex_);
        return handle_ == nullptr;
    }

  private:
    const char *if_closed_; // the message of the error
    mutable std::mutex mutex_;
    std::shared_ptr<T> handle_;
};

} // namespace ipyllama
