#include "log.h"

#include <algorithm>
#include <deque>
#include <mutex>

#include "llama.h"
#include "mtmd.h"

namespace ipyllama::log {
namespace {

constexpr std::size_t capacity = 512;
constexpr std::size_t max_error_lines = 3;

struct Ring {
    std::mutex mutex;
    std::deque<Line> lines;
    std::uint64_t next = 0;
    bool open_line = false; // the last line has not seen its newline yet

    void add(int level, const char *text) {
        const std::lock_guard lock(mutex);
        if (open_line && !lines.empty()) {
            lines.back().text += text;
        } else {
            lines.push_back({next++, level, text});
        }
        std::string &line = lines.back().text;
        open_line = line.empty() || line.back() != '\n';
        while (!line.empty() && line.back() == '\n') {
            line.pop_back();
        }
        if (lines.size() > capacity) {
            lines.pop_front();
        }
    }
};

// Never destroyed: upstream may log while static objects are torn down.
Ring &ring() {
    static Ring *instance = new Ring;
    return *instance;
}

void on_line(ggml_log_level level, const char *text, void * /*user_data*/) {
    ring().add(static_cast<int>(level), text);
}

} // namespace

void install() {
    llama_log_set(on_line, nullptr);
    mtmd_log_set(on_line, nullptr);
}

std::uint64_t next_number() {
    const std::lock_guard lock(ring().mutex);
    return ring().next;
}

std::vector<Line> since(std::uint64_t from) {
    const std::lock_guard lock(ring().mutex);
    std::vector<Line> found;
    std::copy_if(ring().lines.begin(), ring().lines.end(), std::back_inserter(found),
                 [from](const Line &line) { return line.number >= from; });
    return found;
}

std::string errors_since(std::uint64_t from) {
    std::vector<std::string> errors;
    for (const Line &line : since(from)) {
        if (line.level == GGML_LOG_LEVEL_ERROR && !line.text.empty()) {
            errors.push_back(line.text);
        }
    }
    std::string joined;
    const std::size_t first = errors.size() > max_error_lines ? errors.size() - max_error_lines : 0;
    for (std::size_t i = first; i < errors.size(); ++i) {
        joined += (joined.empty() ? "" : "; ") + errors[i];
    }
    return joined;
}

std::string reason_since(std::uint64_t from) {
    const auto said = errors_since(from);
    return said.empty() ? "" : " (" + said + ")";
}

} // namespace ipyllama::log
