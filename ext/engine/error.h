// Errors of the engine. The bindings turn each kind into the Python exception of that name.
#pragma once

#include <stdexcept>
#include <string>

namespace ipyllama {

enum class ErrorKind {
    aborted,
    bad_argument,
    bad_grammar,
    bad_model_file,
    bad_state,
    cannot_shift,
    cannot_trim,
    closed,
    decode,
    not_enough_memory
};

class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, const std::string &message) : std::runtime_error(message), kind_(kind) {}
    ErrorKind kind() const noexcept { return kind_; }

  private:
    ErrorKind kind_;
};

inline void require(bool ok, const std::string &message) {
    if (!ok) {
        throw Error(ErrorKind::bad_argument, message);
    }
}

} // namespace ipyllama
