#include "gil.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace {

constexpr auto patience = std::chrono::seconds(10); // what runs longer is left to its fate

std::atomic<bool> ending{false};
std::atomic<std::thread::id> ended_by{};
std::atomic<int> n_away{0}; // threads that work without the lock or want it back

void hold_if_ending() {
    if (ending && ended_by.load() != std::this_thread::get_id()) {
        --n_away;
        while (true) {
            std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }
}

} // namespace

ReleasedGil::ReleasedGil() {
    ++n_away;
    state_ = PyEval_SaveThread();
    hold_if_ending();
}

ReleasedGil::~ReleasedGil() {
    hold_if_ending();
    PyEval_RestoreThread(state_);
    --n_away;
}

void ReleasedGil::on_exit() {
    ended_by = std::this_thread::get_id();
    ending = true;
    PyThreadState *state = PyEval_SaveThread(); // who was on the way back may have the lock once more
    const auto limit = std::chrono::steady_clock::now() + patience;
    while (n_away > 0 && std::chrono::steady_clock::now() < limit) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    PyEval_RestoreThread(state);
}

void ReleasedGil::on_fork() {
    n_away = 0;
}
