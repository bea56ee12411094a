// llama.cpp's log lines in a ring buffer: nothing is printed, nothing calls into Python.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ipyllama::log {

// Levels of ggml.h: 1 debug, 2 info, 3 warning, 4 error.
struct Line {
    std::uint64_t number;
    int level;
    std::string text;
};

// Sends upstream's log here. Safe to call again.
void install();

// The number that the next line will get: a mark for errors_since().
std::uint64_t next_number();

// Lines from `from` on that are still in the buffer, oldest first.
std::vector<Line> since(std::uint64_t from);

// The last few error lines from `from` on, as one string ("" if there are none).
std::string errors_since(std::uint64_t from);

// The same as the end of a message: " (what llama.cpp said)", or "".
std::string reason_since(std::uint64_t from);

} // namespace ipyllama::log
