// Running something on a stack of chosen size.
#pragma once

#include <cstddef>
#include <functional>

namespace ipyllama {

// Runs `work` on a thread of its own with at least `bytes` of stack, and waits for it. What it throws is thrown here.
// Throws not_enough_memory if there is no such stack.
void with_stack(std::size_t bytes, const std::function<void()> &work);

// Runs `work`, which tokenises a text of `n_bytes`, with a stack that is deep enough for it.
void with_stack_for_text(std::size_t n_bytes, const std::function<void()> &work);

} // namespace ipyllama
