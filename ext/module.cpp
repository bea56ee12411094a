#include "bind.h"
#include "build_info.h"

namespace {

void watch_the_end_of_the_interpreter() {
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&ReleasedGil::on_exit));
    const nb::module_ os = nb::module_::import_("os");
    if (nb::hasattr(os, "register_at_fork")) {
        os.attr("register_at_fork")("after_in_child"_a = nb::cpp_function(&ReleasedGil::on_fork));
    }
}

} // namespace

NB_MODULE(_core, m) {
#ifdef NDEBUG
    // What a traceback or a notebook's variable still holds when the interpreter ends is no leak of ours.
    nb::set_leak_warnings(false);
#endif
    watch_the_end_of_the_interpreter();
    m.doc() = "llama.cpp for ipyllama: thin bindings over ext/engine.";
    m.attr("__version__") = IPYLLAMA_VERSION;
    init_errors(m);
    init_backend(m);
    init_model(m);
    init_context(m);
    init_sequence(m);
    init_sampler(m);
    init_adapter(m);
    init_multimodal(m);
    init_embedding(m);
}
