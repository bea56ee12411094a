#include "budget.h"

#include <cstddef>
#include <new>

namespace ipyllama {
namespace {

thread_local std::uint64_t left = AllocationBudget::unlimited;
thread_local bool was_spent = false;

} // namespace

AllocationBudget::AllocationBudget(std::uint64_t allocations) {
    left = allocations;
    was_spent = false;
}
AllocationBudget::~AllocationBudget() {
    left = unlimited;
}
bool AllocationBudget::spent() const {
    return was_spent;
}

} // namespace ipyllama

#ifdef IPYLLAMA_WRAP_NEW // the linker sends every operator new of this extension, llama.cpp's among them, here
extern "C" {
void *__real__Znwm(std::size_t size);
void *__wrap__Znwm(std::size_t size);

void *__wrap__Znwm(std::size_t size) {
    using namespace ipyllama;
    if (left != AllocationBudget::unlimited && left-- == 0) {
        left = AllocationBudget::unlimited; // whoever catches it may allocate
        was_spent = true;
        throw std::bad_alloc();
    }
    return __real__Znwm(size);
}
}
#endif
