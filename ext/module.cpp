#include "bind.h"
#include "build_info.h"

NB_MODULE(_core, m) {
#ifdef NDEBUG
    // What a traceback or a notebook's variable still holds when the interpreter ends is no leak of ours.
    nb::set_leak_warnings(false);
#endif
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&ReleasedGil::on_exit));
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
