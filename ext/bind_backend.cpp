#include "bind.h"
#include "build_info.h"
#include "engine/backend.h"
#include "engine/crash_note.h"
#include "engine/log.h"

namespace {

std::map<std::string, std::string> build_info() {
    return {{"version", IPYLLAMA_VERSION},
            {"llama_cpp_commit", IPYLLAMA_LLAMA_CPP_COMMIT},
            {"llama_cpp_carrier", IPYLLAMA_LLAMA_CPP_CARRIER},
            {"options", IPYLLAMA_BUILD_OPTIONS},
            {"compiler", IPYLLAMA_COMPILER},
            {"build_type", IPYLLAMA_BUILD_TYPE}};
}

nb::list log_since(std::uint64_t number) {
    nb::list lines;
    for (const auto &line : ipyllama::log::since(number)) {
        lines.append(nb::make_tuple(line.number, line.level, to_text(line.text)));
    }
    return lines;
}

} // namespace

void init_backend(nb::module_ &m) {
    m.def("build_info", &build_info, "What this extension was built from and how.");
    m.def("system_info", &ipyllama::system_info, release_gil(), "ggml's features and instruction sets, one line.");
    m.def("devices", &ipyllama::devices, release_gil(), "(name, description) of each compute device.");
    m.def("log_since", &log_since, "number"_a, nb::sig("def log_since(number: int) -> list[tuple[int, int, str]]"),
          "llama.cpp's log lines from `number` on: (number, level, text); levels 1 debug, 2 info, 3 warning, 4 error. "
          "The buffer holds the last 512 lines.");
    m.def("set_crash_file", &ipyllama::crash_note::set_file, "path"_a,
          "Where llama.cpp's message goes if it ends the process; nothing is created before. \"\" is nowhere.");
    m.def("set_crash_facts", &ipyllama::crash_note::set_facts, "facts"_a,
          "Lines of \"name: value\" that go into that file as well.");
    m.def("log_next", &ipyllama::log::next_number, "The number that the next log line will get.");
}
