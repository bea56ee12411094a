#include "deep_stack.h"

#include <exception>

#ifndef _WIN32
#include <pthread.h>
#endif

#include "error.h"

namespace ipyllama {

#ifdef _WIN32

// std::regex, the reason for deep stacks, throws there when it runs out of stack.
void with_stack(std::size_t /*bytes*/, const std::function<void()> &work) {
    work();
}

#else

namespace {

struct Task {
    const std::function<void()> &work;
    std::exception_ptr error;
};

void *run(void *argument) {
    auto *task = static_cast<Task *>(argument);
    try {
        task->work();
    } catch (...) {
        task->error = std::current_exception();
    }
    return nullptr;
}

} // namespace

void with_stack(std::size_t bytes, const std::function<void()> &work) {
    constexpr std::size_t page = 1U << 16; // a multiple of every page size
    Task task{work, nullptr};
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    const bool started = pthread_attr_setstacksize(&attributes, (bytes + page - 1) / page * page) == 0 &&
                         pthread_create(&thread, &attributes, run, &task) == 0;
    pthread_attr_destroy(&attributes);
    if (!started) {
        throw Error(ErrorKind::not_enough_memory,
                    "there is no memory for a stack of " + std::to_string(bytes) + " bytes");
    }
    pthread_join(thread, nullptr);
    if (task.error) {
        std::rethrow_exception(task.error);
    }
}

#endif

// std::regex, which cuts text into words for some vocabularies, recurses once per character of a run of one kind
// (measured: 400 bytes each). Above this size a text gets a stack that is deep enough for one long run.
void with_stack_for_text(std::size_t n_bytes, const std::function<void()> &work) {
    constexpr std::size_t deep_text = 4096;
    constexpr std::size_t stack_per_byte = 1024;
    if (n_bytes > deep_text) {
        with_stack((deep_text + n_bytes) * stack_per_byte, work);
    } else {
        work();
    }
}

} // namespace ipyllama
