#include "bind.h"
#include "engine/error.h"
#include "engine/grammar.h"

namespace {

const char *class_name(ipyllama::ErrorKind kind) {
    using ipyllama::ErrorKind;
    switch (kind) {
    case ErrorKind::aborted:
        return "Aborted";
    case ErrorKind::bad_argument:
        return "BadArgument";
    case ErrorKind::bad_grammar:
        return "BadGrammar";
    case ErrorKind::bad_model_file:
        return "BadModelFile";
    case ErrorKind::bad_state:
        return "BadState";
    case ErrorKind::cannot_shift:
        return "CannotShift";
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

void raise(const char *name, const std::string &message) {
    const nb::object cls = nb::module_::import_("ipyllama.errors").attr(name);
    PyErr_SetObject(cls.ptr(), cls(to_text(message)).ptr());
}

void raise_grammar_error(const ipyllama::GrammarError &error) {
    const nb::object cls = nb::module_::import_("ipyllama.errors").attr("BadGrammar");
    auto place = [](int number) { return number > 0 ? nb::object(nb::int_(number)) : nb::none(); };
    PyErr_SetObject(cls.ptr(), cls(to_text(error.what()), place(error.line()), place(error.column())).ptr());
}

void translate(const std::exception_ptr &pointer, void * /*payload*/) {
    try {
        std::rethrow_exception(pointer);
    } catch (const ipyllama::GrammarError &error) {
        raise_grammar_error(error);
    } catch (const ipyllama::Error &error) {
        raise(class_name(error.kind()), error.what());
    } catch (const nb::builtin_exception &) {
        throw;                                // nanobind's own
    } catch (const std::logic_error &error) { // upstream's, out of its C API
        raise("LlamaError", std::string("llama.cpp failed: ") + error.what());
    } catch (const std::runtime_error &error) {
        raise("LlamaError", std::string("llama.cpp failed: ") + error.what());
    }
}

} // namespace

void init_errors(nb::module_ & /*m*/) {
    nb::register_exception_translator(translate);
}
