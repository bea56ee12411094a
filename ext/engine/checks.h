// Upstream ends the process where one of its own checks fails (GGML_ASSERT), for example over a damaged model file.
#pragma once

namespace ipyllama {

// While one of these lives, a check that fails on this thread throws std::runtime_error with its message. Only for
// calls that may be left half done: loading a file, making a context, tokenising.
class ChecksThrow {
  public:
    ChecksThrow();
    ~ChecksThrow();
    ChecksThrow(const ChecksThrow &) = delete;
    ChecksThrow &operator=(const ChecksThrow &) = delete;

    // Everywhere else a failed check still ends the process, with its message on stderr and in the crash note. Safe to
    // call again.
    static void install();
};

} // namespace ipyllama
