// A bound on native work that has none of its own.
#pragma once

#include <cstdint>

namespace ipyllama {

// While one of these lives, one allocation more than `allocations` on this thread throws std::bad_alloc. Only for calls
// that may be left by an exception. Without a linker that can wrap a function (macOS, Windows) there is no bound.
class AllocationBudget {
  public:
    static constexpr std::uint64_t unlimited = UINT64_MAX;

    explicit AllocationBudget(std::uint64_t allocations);
    ~AllocationBudget();
    AllocationBudget(const AllocationBudget &) = delete;
    AllocationBudget &operator=(const AllocationBudget &) = delete;

    bool spent() const;
};

} // namespace ipyllama
