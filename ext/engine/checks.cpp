#include "checks.h"

#include <cstdio>
#include <stdexcept>
#include <string>

#include "ggml.h"

#include "crash_note.h"

namespace ipyllama {
namespace {

thread_local int guards = 0;

// The message begins with the path of a source file on the machine that built it: its name will do.
std::string without_folder(const std::string &message) {
    const auto end = message.find(": ");
    const auto slash = message.find_last_of("/\\", end);
    return slash == std::string::npos ? message : message.substr(slash + 1);
}

void on_failed_check(const char *message) {
    if (guards > 0) {
        throw std::runtime_error(without_folder(message));
    }
    std::fprintf(stderr, "%s\n", message);
    crash_note::write(without_folder(message).c_str());
}

} // namespace

ChecksThrow::ChecksThrow() {
    ++guards;
}
ChecksThrow::~ChecksThrow() {
    --guards;
}
void ChecksThrow::install() {
    ggml_set_abort_callback(on_failed_check);
}

} // namespace ipyllama
