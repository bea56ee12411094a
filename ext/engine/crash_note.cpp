#include "crash_note.h"

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <direct.h>
#include <io.h>
#include <process.h>
#else
#include <unistd.h>
#endif

#include "log.h"

namespace ipyllama::crash_note {
namespace {

constexpr std::uint64_t recent_lines = 64; // error lines older than that belong to another story

struct State {
    std::mutex mutex;
    std::string file;
    std::string facts;
};

// Never destroyed: threads may outlive the static objects.
State &state() {
    static State *instance = new State;
    return *instance;
}

// Only the owner may read it; it says which notebook was open.
#ifdef _WIN32
int open_new(const char *path) {
    return _open(path, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY, _S_IREAD | _S_IWRITE);
}
int make_folder(const char *path) {
    return _mkdir(path);
}
int process_id() {
    return _getpid();
}
#else
int open_new(const char *path) {
    return ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}
int make_folder(const char *path) {
    return ::mkdir(path, 0700);
}
int process_id() {
    return ::getpid();
}
#endif

int open_in_new_folders(const std::string &path) {
    int file = open_new(path.c_str());
    for (std::size_t at = 1; file < 0 && errno == ENOENT && at < path.size(); ++at) {
        if (path[at] == '/' || path[at] == '\\') {
            make_folder(path.substr(0, at).c_str());
            file = open_new(path.c_str());
        }
    }
    return file;
}

std::string one_line(std::string text) {
    for (char &c : text) {
        c = (c == '\n' || c == '\r') ? ' ' : c;
    }
    return text;
}

// A file in one piece or none that anyone reads: the message comes last.
std::string compose(const std::string &facts, const char *message) {
    const auto next = log::next_number();
    const auto errors = log::errors_since(next > recent_lines ? next - recent_lines : 0);
    return facts + "\ntime: " + std::to_string(std::time(nullptr)) + "\npid: " + std::to_string(process_id()) +
           "\nlog: " + one_line(errors) + "\nmessage: " + one_line(message) + "\n";
}

void write_all(int file, std::string_view text) {
    while (!text.empty()) {
#ifdef _WIN32
        const auto n = ::_write(file, text.data(), static_cast<unsigned>(text.size()));
#else
        const auto n = ::write(file, text.data(), text.size());
#endif
        if (n <= 0) {
            return;
        }
        text.remove_prefix(static_cast<std::size_t>(n));
    }
}

} // namespace

void set_file(const std::string &path) {
    const std::lock_guard lock(state().mutex);
    state().file = path;
}

void set_facts(const std::string &facts) {
    const std::lock_guard lock(state().mutex);
    state().facts = facts;
}

void write(const char *message) noexcept {
    try {
        const std::lock_guard lock(state().mutex);
        const std::string text = compose(state().facts, message); // before there is a file
        const int file = state().file.empty() ? -1 : open_in_new_folders(state().file);
        if (file >= 0) {
            write_all(file, text);
        }
    } catch (...) { // no memory, say: the message is on stderr
    }
}

} // namespace ipyllama::crash_note
