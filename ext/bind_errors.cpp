#include "bind.h"
#include "engine/error.h"

namespace {

const char *class_name(ipyllama::ErrorKind kind) {
    using ipyllama::ErrorKind;
    switch (kind) {
    case ErrorKind::aborted:
        return "Aborted";
    case ErrorKind::bad_argument:
        return "BadArgument";
    case ErrorKind::bad_model_file:
        return "BadModelFile";
    case ErrorKind::bad_state:
        return "BadState";
    case ErrorKind::cannot_trim:
        return "CannotTrim";
    case ErrorKind::closed:
        return "ClosedError";
    case ErrorKind::decode:
        return "DecodeError";
    case ErrorKind::not_enough_memory:
        return "NotEnoughMemory";
    }
    return "LlamaError";
}

void translate(const std::exception_ptr &pointer, void * /*payload*/) {
    try {
        std::rethrow_exception(pointer);
    } catch (const ipyllama::Error &error) {
        const nb::object cls = nb::module_::import_("ipyllama.errors").attr(class_name(error.kind()));
        PyErr_SetObject(cls.ptr(), cls(to_text(error.what())).ptr());
    }
}

} // namespace

void init_errors(nb::module_ & /*m*/) { nb::register_exception_translator(translate); }
